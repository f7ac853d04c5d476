"""The newer version of the same program: two indexes, unique mails, and a transaction."""

from typing import Any

from partita.patterns import entity, eventual, idempotent, index


@entity(table="guests", partition="{hotel}", row="g_{id:08d}")
class Guest:
    hotel: str
    id: int
    mail: str
    code: str


@entity(table="greetings", partition="{hotel}", row="{id:08d}")
class Greeting:
    hotel: str
    id: int


by_code = index(Guest, row="code_{code:esc}_{id:08d}", name="by_code")
by_mail = index(Guest, row="mail_{mail}", unique=True, name="by_mail")
mails = index(Guest, table="mails", partition="{mail}", row="{hotel:esc}_{id:08d}", name="mails")


@idempotent
async def send_greeting(db: Any, arguments: dict[str, Any]) -> None:
    await db.table(Greeting).upsert(Greeting(**arguments))


greet = eventual("greet", send_greeting)
