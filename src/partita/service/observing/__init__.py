"""What a serving process knows of itself: counters, logs, slow requests, the operations endpoint.

`ServiceMeter` counts the answers of a service, `Operations` answers questions about all of it.
"""

from partita.service.observing.meter import ServiceMeter as ServiceMeter
from partita.service.observing.operations import Operations as Operations
