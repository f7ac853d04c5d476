"""The older version of a program: guests of hotels, without the indexes of the newer one."""

from partita.patterns import entity


@entity(table="guests", partition="{hotel}", row="g_{id:08d}")
class Guest:
    hotel: str
    id: int
    mail: str
    code: str
