"""Secrets stay secret: no key and no signature in any log line, output or answer."""

import base64
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, quote

import pytest

from support.live import ANY_PORTS
from wire.hostile import JSON, Service, a_batch, a_part, in_seconds

ACCOUNT = "harbour"
KEYS = [base64.b64encode(bytes([seed]) * 64).decode() for seed in (7, 201)]
TARGET = "/Staff(PartitionKey='a',RowKey='1')"


class Observed:
    """A server with a request log, everything it said, and every secret that it was told."""

    def __init__(self, folder: Path) -> None:
        folder.joinpath("keys").write_text("\n".join(KEYS))
        folder.joinpath("keys").chmod(0o600)
        self._command = [sys.executable, "-m", "partita.cli.main"]
        self._flags = ["--account", ACCOUNT, "--account-key-file", "keys", *ANY_PORTS]
        self._folder = folder
        self.said: list[str] = []
        self.secrets = set(KEYS)
        for key in KEYS:
            plain = base64.b64decode(key)
            self.secrets |= {plain.hex(), repr(plain)[2:-1], quote(key, safe="")}

    def __enter__(self) -> "Observed":
        self._process = subprocess.Popen(
            [*self._command, "serve", "--json", "--request-log", *self._flags],
            cwd=self._folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        self.said.append(line)
        self.service = Service(json.loads(line)["addresses"][-1][1], ACCOUNT, KEYS[0])
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        output, log = self._process.communicate(timeout=60)
        self.log = log
        self.said += [output, log]

    def send(self, data: bytes) -> str:
        """Send a request, take note of the secrets in it and of all that is answered."""
        head = data.partition(b"\r\n\r\n")[0].decode("latin-1")
        self._learn(head)
        answer = self.service.exchange(data)
        self.said += [answer.body.decode("latin-1"), json.dumps(answer.headers)]
        return answer.told

    def _learn(self, head: str) -> None:
        """Signatures are secrets in every form in which they were sent."""
        macs = re.findall(r"Authorization: \w+ \w+:(\S+)", head)
        signatures = re.findall(r"[?&]%?\w*sig=([^&\s]+)", head)
        decoded = [value for each in signatures for value in parse_qs(f"s={each}")["s"]]
        self.secrets |= {text for text in (*macs, *signatures, *decoded) if len(text) > 8}

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._command, *arguments, *self._flags],
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.said += [done.stdout, done.stderr]
        return done.stdout


@pytest.fixture
def observed(tmp_path: Path) -> Observed:
    return Observed(tmp_path)


def test_no_key_and_no_signature_is_ever_said(observed: Observed) -> None:
    with observed:
        told = exercise(observed)
    observed.run("config", "show")
    observed.run("config", "show", "--json")
    observed.run("serve", "--host", "203.0.113.1")

    everything = "\n".join(observed.said)
    assert {"200", "201", "202 204"} <= told
    assert {"400", "401", "403", "404", "405", "409", "413", "414", "431", "501"} <= {
        each[:3] for each in told
    }
    assert len(observed.secrets) > 20
    assert [secret for secret in observed.secrets if secret in everything] == []
    assert re.findall(r"sig=(?!REDACTED\b)\S+", everything) == []
    assert re.findall(r"SharedKey\w* (?!<account>)\S+", everything) == []
    assert "AccountKey=" not in everything.replace("AccountKey=<your key>", "")


def test_signatures_are_replaced_in_the_log_and_the_rest_is_kept(observed: Observed) -> None:
    with observed:
        sas = observed.service.table_sas("Staff", sp="r")
        observed.send(observed.service.unsigned("GET", f"/Staff()?{sas}&$top=3"))

    line = next(line for line in observed.log.splitlines() if "/Staff()" in line)
    assert "&sig=REDACTED&$top=3" in line
    assert "sp=r" in line


def exercise(observed: Observed) -> set[str]:
    """Send what is right and what is wrong, by key and by token; return what was told."""
    service, send = observed.service, observed.send
    other_key = service._replace(key=KEYS[1])
    stranger = service._replace(key=base64.b64encode(b"strange").decode())
    entity = '{"PartitionKey":"a","RowKey":"1"}'
    staff, reader = service.table_sas("Staff", sp="raud"), service.table_sas("Staff", sp="r")
    expired = service.table_sas("Staff", sp="r", se=in_seconds(-60))
    headers, body = a_batch(a_part("PUT", TARGET, {"X": 1}))
    requests = [
        service.signed("POST", "/Tables", JSON, '{"TableName":"Staff"}'),
        service.signed("POST", "/Tables", JSON, '{"TableName":"Staff"}'),
        other_key.signed("POST", "/Staff", JSON, entity),
        stranger.signed("GET", TARGET),
        stranger.signed("POST", "/$batch", headers, body),
        service.unsigned("GET", TARGET),
        service.unsigned("GET", TARGET, {"Authorization": f"SharedKey {ACCOUNT}:{KEYS[0]}"}),
        service.unsigned("GET", TARGET, {"Authorization": f"Basic {KEYS[0]}"}),
        service.unsigned("GET", TARGET, {"Authorization": f"Bearer {KEYS[0]}"}),
        service.signed("GET", TARGET, {"x-ms-version": "newest"}),
        service.signed("GET", f"{TARGET}?{staff}"),
        service.unsigned("GET", f"{TARGET}?{staff}"),
        service.unsigned("GET", f"{TARGET}?{staff}&{staff}"),
        service.unsigned("GET", f"{TARGET}?{staff.replace('sig=', '%73ig=')}"),
        service.unsigned("GET", f"{TARGET}?{staff.replace('sig=', 'SIG=')}"),
        service.unsigned("GET", f"{TARGET}?{expired}"),
        service.unsigned("GET", f"{TARGET}?{stranger.table_sas('Staff', sp='r')}"),
        service.unsigned("GET", f"/Staff()?{reader}&$filter=('"),
        service.unsigned("GET", f"/Staff()?{reader}&$orderby=X"),
        service.unsigned("GET", f"/Staff()?{reader}&$top=1"),
        service.unsigned("GET", f"/Nothing()?{reader}"),
        service.unsigned("GET", f"/Staff?comp=acl&{staff}"),
        service.unsigned("DELETE", f"{TARGET}?{reader}", {"If-Match": "*"}),
        service.unsigned("POST", f"/$batch?{staff}", headers, body),
        service.unsigned("POST", f"/$batch?{reader}", headers, body),
        service.unsigned("PUT", f"{TARGET}?{staff}", {"Content-Type": "text/plain"}, "{}"),
        service.unsigned("GET", f"/Tables?{service.account_sas()}"),
        service.unsigned("GET", f"/Tables?{service.account_sas(ss='b')}"),
        service.unsigned("POST", f"{TARGET}?{staff}"),
        service.unsigned("GET", f"/Staff(PartitionKey='a',RowKey='no')?{staff}"),
        service.unsigned("GET", f"{TARGET}?{staff}&x={'x' * 40_000}"),
        service.unsigned("GET", f"{TARGET}?{staff}", {"X-A": "a" * 70_000}),
        service.unsigned("GET", f"{TARGET}?{staff}#fragment"),
        service.unsigned("GET", f"{TARGET}?{staff}", {"Content-Length": "x"}),
        service.unsigned("PUT", f"{TARGET}?{staff}", JSON, bytes(5 * 2**20)),
        service.unsigned("OPTIONS", f"{TARGET}?{staff}", {"Origin": "http://evil.example"}),
    ]
    return {send(request) for request in requests}
