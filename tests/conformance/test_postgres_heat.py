"""The suite of heat on PostgreSQL."""

from conformance.kept_heat import KeptHeatConformance
from partita.heat.kept import KeptHeat
from partita.heat.limits import MINUTES_KEPT_SECONDS, TENS_KEPT_SECONDS
from partita.scaleout.fleet import Fleet
from support.catalog_databases import shared_url


class TestOnPostgreSQL(KeptHeatConformance):
    minutes_kept, tens_kept = MINUTES_KEPT_SECONDS, TENS_KEPT_SECONDS
    fleet: Fleet

    async def open_heat(self) -> KeptHeat:
        self.fleet = await Fleet.open(await shared_url())
        await self.fleet.catalog.account_id("dev")
        return await self.fleet.heat.of_account("dev")

    async def close_heat(self, heat: KeptHeat) -> None:
        await heat.close()
        await self.fleet.close()
