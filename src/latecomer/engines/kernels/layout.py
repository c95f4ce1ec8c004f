"""How rows and pixels lie in memory: as ops/triton_tools.py says."""

from ...ops.triton_tools import pitch
from ...ops.triton_tools import whole_rows as rows_apart

__all__ = ["pitch", "rows_apart"]
