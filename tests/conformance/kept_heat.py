"""What every store of heat does: minutes, tens, retention, sums."""

from abc import ABC, abstractmethod

from partita.heat.axes import Axis, Bucket, total
from partita.heat.kept import KeptHeat
from partita.heat.limits import MINUTES_IN_MEMORY_SECONDS, TENS_IN_MEMORY_SECONDS
from partita.heat.minutes import OTHERS, Axes, TableAxis

HOUR = 1_768_471_200
"""A whole hour, in seconds since 1970."""
EVER = (0, HOUR + 10**8)


def axis_of(*rows: tuple[str, int]) -> Axis:
    return [Bucket(key, key, (count, 0, 0, 10 * count, 0)) for key, count in rows]


def axes_of(table: str, *rows: tuple[str, int]) -> Axes:
    return {table.lower(): TableAxis(table, axis_of(*rows))}


class KeptHeatConformance(ABC):
    minutes_kept = MINUTES_IN_MEMORY_SECONDS
    tens_kept = TENS_IN_MEMORY_SECONDS

    @abstractmethod
    async def open_heat(self) -> KeptHeat: ...

    async def close_heat(self, heat: KeptHeat) -> None:
        await heat.close()

    async def test_a_minute_is_read_as_it_was_added(self) -> None:
        heat = await self.open_heat()
        await heat.add(HOUR, axes_of("Staff", ("a\0\U0001f600", 3), ("b", 5)), HOUR + 60)

        (column,) = await heat.read("staff", *EVER)

        assert (column.start, column.seconds) == (HOUR, 60)
        assert column.axis == axis_of(("a\0\U0001f600", 3), ("b", 5))
        assert await heat.read("other", *EVER) == []
        await self.close_heat(heat)

    async def test_a_minute_that_is_added_twice_has_both_loads(self) -> None:
        heat = await self.open_heat()
        for _ in range(2):
            await heat.add(HOUR, axes_of("Staff", ("a", 3)), HOUR + 60)

        (column,) = await heat.read("staff", *EVER)

        assert column.axis == axis_of(("a", 6))
        await self.close_heat(heat)

    async def test_only_the_time_that_is_asked_for_is_read(self) -> None:
        heat = await self.open_heat()
        for minute in range(5):
            start = HOUR + 60 * minute
            await heat.add(start, axes_of("Staff", (str(minute), 1)), start + 60)

        found = await heat.read("staff", HOUR + 90, HOUR + 180)

        assert [column.start for column in found] == [HOUR + 60, HOUR + 120]
        await self.close_heat(heat)

    async def test_minutes_become_tens_and_both_have_their_retention(self) -> None:
        heat = await self.open_heat()
        for minute in range(25):
            start = HOUR + 60 * minute
            await heat.add(start, axes_of("Staff", (f"{minute:02}", 4)), start + 61)

        young = await heat.read("staff", *EVER)
        later = HOUR + self.minutes_kept + 2400
        await heat.add(later, axes_of("Staff", ("z", 1)), later + 60)
        old = await heat.read("staff", *EVER)
        later += self.tens_kept + 1200
        await heat.add(later, axes_of("Staff", ("z", 1)), later + 60)
        oldest = await heat.read("staff", *EVER)

        assert [column.seconds for column in young] == [60] * 25
        assert [(each.start - HOUR, each.seconds) for each in old[:3]] == [
            (0, 600),
            (600, 600),
            (1200, 600),
        ]
        assert [total(column.axis)[0] for column in old[:3]] == [40, 40, 20]
        assert [each.seconds for each in old[3:]] == [60]
        assert [column.start for column in oldest] == [later]
        await self.close_heat(heat)

    async def test_a_clock_that_was_set_back_adds_to_earlier_minutes(self) -> None:
        heat = await self.open_heat()
        for minute in (*range(12), *range(3)):
            start = HOUR + 60 * minute
            await heat.add(start, axes_of("Staff", ("a", 1)), start + 60)

        found = await heat.read("staff", *EVER)

        assert [total(column.axis)[0] for column in found] == [2, 2, 2, *[1] * 9]
        await self.close_heat(heat)

    async def test_a_minute_far_ahead_is_forgotten_when_the_clock_is_right_again(self) -> None:
        heat = await self.open_heat()
        ahead = HOUR + 30 * self.tens_kept // 60 * 60
        await heat.add(ahead, axes_of("Staff", ("a", 1)), ahead + 60)
        await heat.add(HOUR, axes_of("Staff", ("a", 1)), HOUR + 60)

        found = await heat.read("staff", 0, ahead * 2)

        assert [column.start for column in found] == [HOUR]
        await self.close_heat(heat)

    async def test_tables_are_listed_with_their_sums_the_hottest_first(self) -> None:
        heat = await self.open_heat()
        await heat.add(HOUR, {**axes_of("Cold", ("a", 1)), **axes_of("Hot", ("a", 9))}, HOUR + 60)
        await heat.add(HOUR + 60, axes_of("hot", ("b", 2)), HOUR + 120)
        await heat.add(HOUR + 120, axes_of(OTHERS, ("many", 5)), HOUR + 180)

        found = await heat.tables(*EVER)

        assert [(each.name.lower(), each.counts[0], each.counts[3]) for each in found] == [
            ("hot", 11, 110),
            ("", 5, 50),
            ("cold", 1, 10),
        ]
        assert await heat.tables(HOUR + 3600, HOUR + 7200) == []
        await self.close_heat(heat)

    async def test_sums_do_not_count_a_minute_and_its_ten(self) -> None:
        heat = await self.open_heat()
        for minute in range(13):
            start = HOUR + 60 * minute
            await heat.add(start, axes_of("Staff", ("a", 1)), start + 61)

        (found,) = await heat.tables(*EVER)

        assert found.counts[0] == 13
        await self.close_heat(heat)
