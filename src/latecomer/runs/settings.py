"""The settings of a run: how the data fall to the clients, how they are trained, and what only a run has.

A method's own settings are the fields of its class; all others are here, or in the dataclasses this one is made of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..data.split import Split
from ..errors import SettingError
from ..plan import Course, Plan
from ..settings import setting, settings_of

if TYPE_CHECKING:
    from ..processors import Processors


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is trained on what."""

    method: str = setting("", "the method; `latecomer list methods` names them")
    data: str = setting("digits", "data set: a name, npz:PATH, leaf:FOLDER or hf:ID; `latecomer list data` names them")
    model: str = setting(
        "auto", "client model; `latecomer list models` names them; auto: lenet, mlp below 16 pixels, lstm for text"
    )
    start: str = setting("", "run folder whose model, one for all clients, the training begins with")
    continue_from: str = setting(
        "", "run folder whose training goes on here, with its settings where none are given; clients may be added"
    )
    sized_for: int = setting(
        0, "number of clients that sizes which follow from it, of descriptors say, are made for; 0: as there are", low=0
    )


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where `--engine ray` works. No number depends on it, so a run may go on elsewhere."""

    workers: int = setting(0, "workers of --engine ray; 0: one for every GPU, or core where there is none", low=0)
    ray_address: str = setting(
        "", "HOST:PORT of the Ray cluster that --engine ray works on, or auto: one that runs here; empty: a new one"
    )


@dataclass(frozen=True, kw_only=True)
class Tracking:
    """Who is told of a run while it is at work. No number depends on it, so a run may go on with another."""

    track: Literal["none", "tensorboard", "mlflow"] = setting(
        "none", "who is told the scores of every evaluation (docs/tracking.md; extra track)"
    )


@dataclass(frozen=True, kw_only=True)
class Settings(Tracking, Place, Plan, Split, Subject):  # bases from the right: their settings come first, in this order
    """A run, less the method's own settings."""

    lr_schedule: Course = setting(
        "constant",
        "learning rates over the rounds of training, on clients and on the server: as they are, divided by ten after "
        "half and again after three quarters of the rounds, or along a cosine to zero",
    )
    processors: str = setting(
        "",
        "what replies in training go through, in this order: clip=1 (largest norm), noise=2 (on the client) or "
        "central=2 (on the server; standard deviation as a multiple of twice the norm), topk=0.01 (share of a change "
        "that is sent), quantise=8 (bits, or 4)",
    )
    privacy_delta: float = setting(
        1e-5, "probability that the privacy of noise= or central= fails", above=0, high=0.999
    )
    privacy_budget: float = setting(
        0.0, "largest epsilon of all answers of a client together, with noise= or central=; 0: no limit", low=0
    )
    secure_mean: bool = setting(
        False, "mask replies that are only averaged, so that the server sees their sum alone (docs/security.md)"
    )
    secure_range: float = setting(
        8.0,
        "with --secure-mean, numbers of a reply are clipped to this on either side of zero, raised to a power of two, "
        "and rounded to an 8-millionth of it",
        low=1e-6,
        high=1e6,
    )
    trace_descriptors: bool = setting(
        False,
        "keep what describes clients before training and at every evaluation, too, not only in the selected round",
    )
    seed: int = setting(
        0, "first seed: of the split, the initial weights, the cohorts and the batches", low=0, high=10**9
    )
    seeds: int = setting(1, "how many seeds, trained in lockstep", low=1)
    engine: Literal["auto", "vector", "loop", "ray", "flower"] = setting("auto", "what runs the clients' steps")
    device: str = setting("auto", "cpu, cuda, or auto: cuda where there is one")
    threads: int = setting(
        0, "processor threads; 0: as PyTorch chooses (sums round differently with another number)", low=0, high=1024
    )
    chunk: int = setting(0, "clients at once; 0: as many as fit into memory (ray: 4 on a core, 16 on a GPU)", low=0)
    graphs: bool = setting(True, "replay exchanges: as CUDA graphs on a GPU, operation by operation on a CPU")
    tf32: bool = setting(True, "on a GPU, let matrix products round their inputs to TF32")
    checkpoint_seconds: float = setting(
        60.0, "seconds between checkpoints, written at evaluations; and at the end", low=0
    )
    name: str = setting("", "name of the run folder (default: method, data, time)")
    out: str = setting("runs", "folder that holds the run folders")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.stack()

    def stack(self) -> Processors:
        """The processors by which replies go."""
        from ..processors import Processors  # here, as it brings PyTorch

        stack = Processors.parse(self.processors, self.privacy_delta, self.privacy_budget)
        if self.privacy_budget and stack.promise is None:
            raise SettingError("--privacy-budget limits what --processors with noise= or central= give away; add one.")
        return stack


HOST = {
    *settings_of(Place),
    *settings_of(Tracking),
    *("engine", "device", "threads", "chunk", "graphs", "checkpoint_seconds", "name", "out"),
}
"""Settings that say where and how fast something is run; what it comes to is the same, but for rounding."""
