from typing import ClassVar

from conformance.log import LogConformance
from partita.clock import ManualClock
from partita.reliable.replication.quorum_log import QuorumLog
from partita.reliable.storage.log import Log
from partita.simulation.stream import NO_FAULTS, Faults, SimCluster

NUISANCES = Faults(
    delay_seconds_max=0.001,
    slow_chance=0.0,
    request_lost_chance=0.0,
    answer_lost_chance=0.0,
    twice_chance=0.2,
    twice_seconds_max=0.01,
    stale_read_chance=0.5,
    lag_seconds_max=0.002,
    trouble_seconds=0.0,
)
"""Short enough for a loop whose time is real."""


class TestQuorumLog(LogConformance):
    faults: ClassVar[Faults] = NO_FAULTS

    async def open_log(self) -> Log:
        self.cluster = SimCluster(seed=1, faults=self.faults)
        return await self.open_again()

    async def reopen(self, log: Log) -> Log:
        await log.close()
        return await self.open_again()

    async def open_again(self) -> QuorumLog:
        return await QuorumLog.open(self.cluster.connect("replica"), ManualClock())


class TestQuorumLogOfLaggingNodes(TestQuorumLog):
    faults: ClassVar[Faults] = NUISANCES
