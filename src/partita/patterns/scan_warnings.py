"""The warning of a scan that `connect(..., scans="warn")` lets happen, at the line that asks."""

import inspect
import warnings
from pathlib import Path

from partita.errors import ScanWarning

_HERE = str(Path(__file__).parent)


def warn_of_scan(told: str) -> None:
    """Warn at the nearest line of the caller that is not ours: whose query is it?"""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        level, frame = level + 1, frame.f_back
    warnings.warn(told, ScanWarning, stacklevel=level)
