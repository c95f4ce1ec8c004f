"""Data: sources of examples, partitions of them, and the packed Federation that comes out.

load("cifar10")                                            a Source: examples and labels
federate(source, partition="classes", clients=100)         a Federation: who owns which of them
Federation.from_arrays(x, y, train=..., test=...)          the same from arrays of your own
from_partitioner(partitioner)                              the same from any partitioner of flwr_datasets
"""

from .deal import federate
from .federation import Examples, Federation
from .partitioner import from_partitioner
from .sources import Source, load

__all__ = ["Examples", "Federation", "Source", "federate", "from_partitioner", "load"]
