"""Metrics of a process: counters and histograms, printed in the text format of Prometheus.

`render()` returns the metrics of the reliable states, shards and workers of this process; a
server prints its own on `--metrics-port`. An object with `families()` is added by `register`.
`partita.metrics.prometheus` has a collector for the registry of prometheus_client.
"""

from partita.metrics.families import COUNT_BOUNDS as COUNT_BOUNDS
from partita.metrics.families import SECONDS_BOUNDS as SECONDS_BOUNDS
from partita.metrics.families import Family as Family
from partita.metrics.families import Histogram as Histogram
from partita.metrics.families import Sample as Sample
from partita.metrics.families import Source as Source
from partita.metrics.sources import collect as collect
from partita.metrics.sources import register as register
from partita.metrics.sources import render as render
from partita.metrics.sources import unregister as unregister
