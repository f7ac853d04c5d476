"""What somebody meets who works from the guide alone: keys, grants, options, workers, the plugin.

Each of these was tried as a user would guess it, and did something else.
"""

import asyncio
import base64
import fcntl
import hashlib
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest
from azure.core.credentials import AzureSasCredential
from azure.core.exceptions import ResourceNotFoundError
from azure.data.tables import TableClient
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.keywrap import aes_key_unwrap, aes_key_wrap
from cryptography.hazmat.primitives.padding import PKCS7

from partita.cli.main import main
from partita.cli.patterns_facts import DriftFacts, Verified
from partita.cli.patterns_text import as_text
from partita.cli.patterns_worker import _stopping
from partita.errors import ConfigurationError, NotSupportedError, UsageError
from partita.patterns import AesKey, Encrypted, Keyring, RsaKey, entity
from partita.patterns.faults import Faults
from partita.patterns.sync import Database, connect
from partita.service.hosting.in_process import LocalAccount
from partita.service.hosting.services import TABLES

pytest_plugins = ["pytester"]

SECRET = bytes(range(32))
COSMOS = (
    "DefaultEndpointsProtocol=https;AccountName=contoso;AccountKey=a2V5;"
    "TableEndpoint=https://contoso.table.cosmos.azure.com:443/"
)


@entity(table="staff", partition="{dept}", row="emp_{id:06d}")
class Employee:
    dept: str
    id: int
    name: str = ""
    salary: Annotated[int | None, Encrypted] = None


@entity(table="files", partition="{dept}", row="{owner:esc}_{name}")
class File:
    dept: str
    owner: str
    name: str


@entity(table="notes", partition="{user}", row="{title}")
class Note:
    user: str
    title: str


class VaultKey:
    """A key of the SDK's own protocol, as a vault gives one."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def get_kid(self) -> str:
        return "vault/payroll"

    def get_key_wrap_algorithm(self) -> str:
        return "A256KW"

    def wrap_key(self, key: bytes, algorithm: str = "A256KW") -> bytes:
        self.asked.append(f"wrap {algorithm}")
        return aes_key_wrap(SECRET, key)

    def unwrap_key(self, key: bytes, algorithm: str) -> bytes:
        self.asked.append(f"unwrap {algorithm}")
        return aes_key_unwrap(SECRET, key)


# ---------------------------------------------------------------------------------------------
# Keys


def test_a_key_of_the_sdk_s_protocol_is_a_keyring_by_itself(partita_account: LocalAccount) -> None:
    key = VaultKey()

    with connect(partita_account, keyring=Keyring(key)) as db:
        employees = db.table(Employee)
        db.create_tables()
        employees.save(Employee(dept="Sales", id=1, salary=70_000))

        assert employees.get(dept="Sales", id=1).salary == 70_000
    assert key.asked == ["wrap A256KW", "unwrap A256KW"]


@pytest.mark.parametrize("given", [VaultKey(), {"2025": SECRET}, "correct horse"])
def test_what_is_no_keyring_is_refused_when_the_database_is_opened(
    partita_account: LocalAccount, given: Any
) -> None:
    with pytest.raises(ConfigurationError) as refused, connect(partita_account, keyring=given):
        pass

    assert refused.value.code == "KeyUnusable"
    assert "Keyring(...)" in refused.value.message


def test_a_pem_and_its_password_may_be_texts() -> None:
    private = rsa.generate_private_key(65537, 2048)
    pem = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"open sesame"),
    )

    key = RsaKey.from_pem("payroll", pem.decode(), password="open sesame")

    assert key.unwrap_key(key.wrap_key(SECRET), "RSA-OAEP-256") == SECRET


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: AesKey("a", "0" * 32), "An AES key is bytes, not a str."),  # type: ignore[arg-type]
        (
            lambda: Keyring.from_passphrase("words", salt="0" * 16),  # type: ignore[arg-type]
            "The salt is bytes, not a str.",
        ),
        (
            lambda: Keyring.from_passphrase(b"words", salt=bytes(16)),  # type: ignore[arg-type]
            "A passphrase is a text, and not an empty one.",
        ),
        (
            lambda: RsaKey("a", ec.generate_private_key(ec.SECP256R1())),  # type: ignore[arg-type]
            "A ECPrivateKey is no RSA key.",
        ),
    ],
)
def test_a_key_of_the_wrong_kind_is_told_as_such(make: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        make()

    assert refused.value.message == said


def sealed_by_dotnet(partition_key: str, row_key: str, values: dict[str, str]) -> dict[str, Any]:
    """Return an entity as the old .NET library stored it, from what is known of its format."""
    content_key, vector = bytes(range(100, 132)), bytes(range(16))

    def encrypted(name: str, text: str) -> bytes:
        place = (row_key + partition_key + name).encode()
        start = hashlib.sha256(vector + place).digest()[:16]
        encryptor = Cipher(algorithms.AES(content_key), modes.CBC(start)).encryptor()
        padder = PKCS7(128).padder()
        padded = padder.update(text.encode()) + padder.finalize()
        return encryptor.update(padded) + encryptor.finalize()

    wrapped = base64.b64encode(aes_key_wrap(SECRET, content_key)).decode()
    details = {
        "WrappedContentKey": {"KeyId": "old", "EncryptedKey": wrapped, "Algorithm": "A256KW"},
        "EncryptionAgent": {"Protocol": "1.0", "EncryptionAlgorithm": "AES_CBC_256"},
        "ContentEncryptionIV": base64.b64encode(vector).decode(),
        "KeyWrappingMetadata": {"EncryptionLibrary": ".NET 9.3.0"},
    }
    names = "_ClientEncryptionMetadata2"
    return {
        "PartitionKey": partition_key,
        "RowKey": row_key,
        **{name: encrypted(name, text) for name, text in values.items()},
        "_ClientEncryptionMetadata1": json.dumps(details),
        names: encrypted(names, json.dumps(list(values))),
    }


def test_a_projection_opens_what_an_old_library_encrypted(partita_account: LocalAccount) -> None:
    @entity(table="old", partition="{dept}", row="{id:06d}", type_property=None)
    class Person:
        dept: str
        id: int
        email: Annotated[str | None, Encrypted] = None

    stored = partita_account.tables.create_table("old")
    stored.create_entity(sealed_by_dotnet("Sales", "000001", {"Email": "ken@contoso.com"}))

    keyring = Keyring({"old": SECRET}, allow_dotnet_v1=True)
    with connect(partita_account, keyring=keyring) as db:
        found = db.table(Person).partition(dept="Sales").all().select("email").list()

    assert [each.email for each in found] == ["ken@contoso.com"]


# ---------------------------------------------------------------------------------------------
# Grants


def test_a_grant_is_one_token_of_the_plain_sdk_and_no_neighbour_s(
    partita_db_sync: Database, partita_account: LocalAccount
) -> None:
    files = partita_db_sync.table(File)
    partita_db_sync.create_tables()
    for owner in ("user1", "user10"):
        files.save(File(dept="Sales", owner=owner, name="plan"))

    grant = partita_db_sync.grant(File, dept="Sales", owner="user1")

    assert (grant.permissions, grant.table) == ("r", "files")
    credential = {"credential": AzureSasCredential(grant.token)}
    arguments: dict[str, Any] = partita_account.client_arguments(TABLES) | credential
    with TableClient(table_name=grant.table, **arguments) as holder:
        assert [each["RowKey"] for each in holder.list_entities()] == ["user1_plan"]
        with pytest.raises(ResourceNotFoundError):
            holder.get_entity("Sales", "user10_plan")


def test_keys_that_are_no_single_range_take_several_grants(partita_db_sync: Database) -> None:
    with pytest.raises(UsageError) as refused:
        partita_db_sync.grant(Note, user="ann")

    assert refused.value.code == "SeveralGrants"
    assert len(partita_db_sync.grants(Note, user="ann")) == 2


def test_a_grant_by_a_stored_policy_leaves_the_rest_to_it(partita_db_sync: Database) -> None:
    grant = partita_db_sync.grant(File, dept="Sales", owner="user1", policy_id="readers")

    assert (grant.permissions, grant.expires, grant.policy_id) == ("", None, "readers")
    assert "sp=" not in grant.token


def test_a_lifetime_in_seconds_is_refused_with_the_reason(partita_db_sync: Database) -> None:
    with pytest.raises(UsageError, match="timedelta") as refused:
        partita_db_sync.grant(File, dept="Sales", owner="ann", ttl=3600)  # type: ignore[arg-type]

    assert refused.value.code == "GrantTerms"
    hour = partita_db_sync.grant(File, dept="Sales", owner="ann", ttl=timedelta(hours=1))
    assert hour.expires is not None


# ---------------------------------------------------------------------------------------------
# Cosmos DB


def test_cosmos_is_granted_nothing() -> None:
    with connect(COSMOS) as db, pytest.raises(NotSupportedError) as refused:
        db.grant(File, dept="Sales")

    assert refused.value.code == "ServiceAbsent"


def test_no_endpoint_beside_cosmos_is_advised_since_one_key_does_not_open_both() -> None:
    with_others = f"{COSMOS};QueueEndpoint=https://contoso.queue.core.windows.net"

    with connect(with_others) as db, pytest.raises(NotSupportedError) as refused:
        db.work_once()

    assert "QueueEndpoint" not in refused.value.hint
    assert "storage account" in refused.value.hint


# ---------------------------------------------------------------------------------------------
# Options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queues": "work"}, "must be a tuple of names"),
        ({"queues": ()}, "must be a tuple of names"),
        ({"queues": ("Work_Items",)}, "not a valid queue name"),
        ({"poison_queue": "p"}, "not a valid queue name"),
        ({"visibility": 0}, "more than 0 and at most 604,800 seconds"),
        ({"visibility": 10_000_000}, "more than 0 and at most 604,800 seconds"),
        ({"deliveries_max": 0}, "must be at least 1"),
        ({"parallel": 0}, "must be at least 1"),
    ],
)
def test_an_option_that_no_service_would_take_is_refused_at_once(
    options: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError) as refused:
        connect("partita::memory:", **options)

    assert refused.value.code == "OptionRefused"
    assert said in refused.value.message


# ---------------------------------------------------------------------------------------------
# The command line


def test_the_example_of_a_connection_string_is_told_whole(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = main(["patterns", "poison", "--connect", "AccountKey=c2VjcmV0"])

    told = capsys.readouterr().err
    assert status == 2
    assert "AccountKey=...;" in told
    assert "c2VjcmV0" not in told


def test_a_module_that_is_refused_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = MODELS.replace(", unique=True", "")  # two employees could share an address
    (tmp_path / "refused_models.py").write_text(lines)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])

    status = main(["patterns", "check", "refused_models"])

    told = capsys.readouterr().err
    assert status == 2
    assert "IndexRefused" in told
    assert told.endswith("Look at line 10 of refused_models.py.\n")


def test_a_worker_for_encrypted_fields_is_not_started_without_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sealed = MODELS.replace(
        "    email: str", "    email: str\n    pay: Annotated[int, Encrypted] = 0"
    )
    imports = "from typing import Annotated\nfrom partita.patterns import Encrypted, Keyring"
    keys = "keyring = Keyring({'2025': bytes(32)})"
    (tmp_path / "sealed_models.py").write_text(f"{imports}\n{sealed}\n{keys}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    command = ["patterns", "worker", "sealed_models", "--once", "--connect", "partita:./kept"]

    assert main(command) == 2
    assert "Give --keyring MODULE:NAME." in capsys.readouterr().err
    assert main([*command, "--keyring", "sealed_models:keyring"]) == 0


def test_of_many_differences_people_are_shown_some_and_told_of_the_rest() -> None:
    drifts = [
        DriftFacts("Employee", "missing", "by_email", "staff", "Sales", f"emp_{number:06d}")
        for number in range(1_250)
    ]

    lines = as_text(Verified(False, {"Employee": 1_250}, drifts, 0, 0)).splitlines()

    assert len([line for line in lines if "missing" in line]) == 100
    assert lines[-2:] == [
        "... and 1,150 more; --json has them all.",
        "1,250 differences: --repair puts them right.",
    ]


async def test_after_a_signal_to_a_worker_the_next_one_waits_for_no_thread() -> None:
    before = signal.getsignal(signal.SIGINT)
    stop = asyncio.Event()

    with _stopping(asyncio.get_running_loop(), stop):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stop.wait(), 10)
        actions = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]

    assert actions == [signal.SIG_DFL, signal.SIG_DFL]
    assert signal.getsignal(signal.SIGINT) == before


MODELS = """
from partita.patterns import entity, index

@entity(table="staff", partition="{dept}", row="emp_{id:06d}", name="Employee")
class Employee:
    dept: str
    id: int
    email: str

by_email = index(Employee, row="email_{email}", unique=True, name="by_email")
"""


@pytest.mark.parametrize("size", [(0, 0), (24, 80)])
def test_a_rebuild_draws_its_progress_on_a_terminal(tmp_path: Path, size: tuple[int, int]) -> None:
    (tmp_path / "models.py").write_text(MODELS)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    partita = str(Path(sys.executable).parent / "partita")

    done = subprocess.run(
        [partita, "patterns", "rebuild", "models:by_email", "--connect", "partita:./kept"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(theirs)
    drawn = os.read(ours, 65536).decode()
    os.close(ours)

    assert done.returncode == 0
    assert "rebuild: 0 entities" in drawn
    assert "by_email of Employee: 0 entities; it is readable." in done.stdout


# ---------------------------------------------------------------------------------------------
# The plugin


def test_fixtures_of_the_plugin_need_no_other_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import asyncio
        from partita.patterns import entity, index

        @entity(table="staff", partition="{dept}", row="{id:06d}")
        class Employee:
            dept: str
            id: int
            email: str

        anywhere = index(Employee, table="byemail", partition="{email}", row="{id:06d}_{dept}")

        def test_with_a_loop_of_its_own(partita_db, partita_worker):
            async def hire():
                employees = partita_db.table(Employee)
                await partita_db.create_tables()
                await employees.save(Employee(dept="Sales", id=1, email="ken@contoso.com"))
                await partita_worker()
                key = {"email": "ken@contoso.com", "id": 1, "dept": "Sales"}
                return await employees.via(anywhere).get(**key)

            assert asyncio.run(hire()).id == 1

        def test_without_a_loop(partita_db_sync, partita_worker_sync):
            employees = partita_db_sync.table(Employee)
            partita_db_sync.create_tables()
            employees.save(Employee(dept="Sales", id=1, email="ken@contoso.com"))
            assert partita_worker_sync().entries == 1
            assert employees.via(anywhere).range(email="ken@contoso.com").count() == 1
        """
    )

    result = pytester.runpytest_subprocess("-p", "no:asyncio", "-W", "error")

    result.assert_outcomes(passed=2)


def test_a_fault_that_is_to_happen_no_time_does_not_happen(
    partita_db_sync: Database, partita_faults: Faults
) -> None:
    files = partita_db_sync.table(File)
    partita_db_sync.create_tables()
    partita_faults.answer_503(times=0)
    before = partita_faults.count

    assert files.get_or_none(dept="Sales", owner="user1", name="plan") is None

    assert partita_faults.count == before + 1
