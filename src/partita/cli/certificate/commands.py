"""`partita certificate make`: write a self-signed certificate and its key for development."""

from partita.cli.kit.commands import JSON, Family, Given, Verb, flag, load, option
from partita.cli.kit.errors import not_installed
from partita.cli.kit.facts import show
from partita.cli.kit.numbers import POSITIVE_COUNT


def _make(given: Given) -> int:
    try:
        make = load("partita.cli.certificate.making:make_certificate")
    except ModuleNotFoundError as error:
        hint = 'Install what certificates need: pip install "./partita[oauth]".'
        raise not_installed(error, hint) from error
    show(make(given), is_json=given.json)
    return 0


certificate = Family(
    "certificate",
    "TLS certificates for development.",
    Verb(
        "make",
        "Write a self-signed certificate for this machine, and its key.",
        option("--to DIR", "Folder of certificate.pem and key.pem.", required=True),
        option(
            "--host NAME", "Another name or address of the server; may be repeated.", multiple=True
        ),
        option("--days N", "How long it is valid (90).", type=POSITIVE_COUNT, default=90),
        flag("--renew", "Replace the files if they exist."),
        JSON,
        runs=_make,
        example="partita certificate make --to ./partita-tls",
    ),
)
