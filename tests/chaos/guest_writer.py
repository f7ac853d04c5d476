"""A process of the newer program: `guest_writer.py CONNECTION FIRST SEED`.

It saves, changes, moves and deletes guests and starts transactions. It prints a line of JSON before
each operation (asked) and after it succeeded (told). A guest whose operation failed is left alone
from then on: the operation may or may not have been done.
"""

import json
import random
import sys
import time
from typing import Any

from azure.core.exceptions import AzureError

from chaos.guests_newer import Greeting, Guest, greet
from partita.errors import PartitaError
from partita.patterns import evolve
from partita.patterns.sync import Database, connect

HOTELS = ("Astor", "Plaza", "Ritz", "Savoy")
GUESTS = 12
RETRY_SECONDS = 0.2


def say(word: str, number: int, guest: Guest | None, *, is_greeted: bool = False) -> None:
    state = None if guest is None else [guest.hotel, guest.mail, guest.code]
    print(json.dumps([word, number, state, is_greeted]), flush=True)


class Writer:
    def __init__(self, db: Database, first: int, seed: int) -> None:
        self._guests = db.table(Guest)
        self._db = db
        self._chance = random.Random(seed)
        self._number = first
        self._changes = 0
        self._present: dict[int, Guest] = {}

    def step(self) -> None:
        """Do one operation; forget the guest if it fails."""
        if len(self._present) < GUESTS:
            self._number += 1
            number, before = self._number, None
        else:
            number, before = self._chance.choice(list(self._present.items()))
        try:
            self._operate(number, before)
        except (PartitaError, AzureError):
            self._present.pop(number, None)
            time.sleep(RETRY_SECONDS)

    def _operate(self, number: int, before: Any) -> None:
        choice = self._chance.random()
        if before is None:
            mail, code = self._mail_and_code(number)
            after = Guest(hotel=self._hotel(), id=number, mail=mail, code=code)
            say("asked", number, after)
            self._told(number, self._guests.save(after))
        elif choice < 0.35:
            after = evolve(before, hotel=self._hotel(but=before.hotel))
            say("asked", number, after)
            self._told(number, self._guests.move(before, hotel=after.hotel))
        elif choice < 0.45:
            say("asked", number, None)
            self._guests.delete(before)
            self._told(number, None)
        elif choice < 0.6:
            say("asked", number, before, is_greeted=True)
            self._db.start(greet, hotel="Astor", id=number)
            say("told", number, before, is_greeted=True)
        else:
            mail, code = self._mail_and_code(number)
            after = evolve(before, mail=mail, code=code)
            say("asked", number, after)
            self._told(number, self._guests.save(after))

    def _told(self, number: int, guest: Any) -> None:
        say("told", number, guest)
        if guest is None:
            del self._present[number]
        else:
            self._present[number] = guest

    def _hotel(self, but: str = "") -> str:
        return self._chance.choice([hotel for hotel in HOTELS if hotel != but])

    def _mail_and_code(self, number: int) -> tuple[str, str]:
        self._changes += 1
        return f"m{number}x{self._changes}", self._chance.choice("abc")


def main(connection: str, first: int, seed: int) -> None:
    with connect(connection) as db:
        db.table(Guest)
        db.table(Greeting)
        writer = Writer(db, first, seed)
        while True:
            writer.step()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
