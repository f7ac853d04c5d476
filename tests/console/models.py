"""Typed entities whose rows the console shows: a module that `--types` names."""

from partita.patterns import entity, list_index


@entity(table="People", partition="{town}", row="{number:04d}")
class Resident:
    town: str
    number: int
    last: str


by_last = list_index(Resident, row="last_{last}")
by_name = list_index(Resident, table="PeopleByName", partition="{last}", row="{town}")
