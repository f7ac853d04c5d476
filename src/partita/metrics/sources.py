"""The metrics of a process: sources that are registered weakly, and printed when asked.

A reliable state, a router or a worker registers itself when it is opened. The list holds no
source alive: an object that is no longer used disappears from it.
"""

import logging
import threading
import weakref
from collections.abc import Iterator

from partita.metrics.families import Family, Source
from partita.metrics.text import print_families

logger = logging.getLogger("partita.metrics")

_sources: "weakref.WeakSet[Source]" = weakref.WeakSet()
_lock = threading.Lock()


def register(source: Source) -> None:
    """Add an object whose `families` belong to the metrics of this process."""
    with _lock:
        _sources.add(source)


def unregister(source: Source) -> None:
    """Remove a source, such as a state that was closed; one that is not registered is ignored."""
    with _lock:
        _sources.discard(source)


def collect() -> Iterator[Family]:
    """Yield the families of all sources; a source that fails is logged and skipped."""
    with _lock:
        sources = list(_sources)
    for source in sources:
        try:
            yield from list(source.families())
        except Exception:
            logger.exception("the metrics of %s could not be read", type(source).__name__)


def render() -> str:
    """Return the metrics of this process in the text format of Prometheus.

    >>> from partita.metrics import render
    >>> isinstance(render(), str)
    True
    """
    return print_families(collect())
