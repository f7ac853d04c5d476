"""What a state on NATS says where the package for it is missing."""

import subprocess
import sys

PROGRAM = """
import asyncio, sys
sys.modules["nats"] = None  # as if it were not installed
import partita
from partita.errors import ConfigurationError

async def main():
    try:
        async with partita.open_state("nats://127.0.0.1:4222", partition="p"):
            pass
    except ConfigurationError as error:
        print(error.code, error.hint)

asyncio.run(main())
"""


def test_a_state_on_nats_names_the_extra_that_it_needs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )

    assert done.stdout == 'ExtraMissing Install it with pip install "./partita[replicated]".\n'
