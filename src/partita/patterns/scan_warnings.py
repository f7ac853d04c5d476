"""The warning for a scan that `connect(..., scans="warn")` allows, at the line of the query."""

import inspect
import warnings
from pathlib import Path

from partita.errors import ScanWarning

_HERE = str(Path(__file__).parent)


def warn_of_scan(explanation: str) -> None:
    """Warn at the nearest caller outside this package."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        level, frame = level + 1, frame.f_back
    warnings.warn(explanation, ScanWarning, stacklevel=level)
