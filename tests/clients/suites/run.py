"""Run the tests of the Azure SDKs for Python themselves against a server: `make suites`.

Their sources come from the package index, their helpers are the stand-in beside this file. The
server runs over https, with accounts of its own and `--oauth development`; the names of the cloud
lead to it. Tests that fail are listed in `expected.toml` with the reason; another outcome fails.
"""

import argparse
import os
import re
import runpy
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

HERE = Path(__file__).parent
PROJECT = HERE.parent.parent.parent
STAND_IN = HERE / "stand_in"
ENVIRONMENT = PROJECT / ".cache" / "suites"
TEST_SECONDS_MAX = 150
"""A failover of the table client takes more than a minute."""
OUTCOME = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED)\b (?:\[\d+\] )?(\S+)", re.MULTILINE)

sys.path.insert(0, str(HERE.parent.parent))


def sources(package: str) -> Path:
    """Return the folder of the tests of a package, in the version that is installed."""
    python = ENVIRONMENT / "bin" / "python"
    code = f"from importlib.metadata import version; print(version({package!r}))"
    asked = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    version = asked.stdout.strip()
    folder = ENVIRONMENT / "sources"
    found = folder / f"{package.replace('-', '_')}-{version}"
    if not found.exists():
        command: list[str | Path] = [python, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--dest", folder, "--no-binary", package, f"{package}=={version}"]
        subprocess.run(command, check=True)
        with tarfile.open(f"{found}.tar.gz") as archive:
            archive.extractall(folder, filter="data")
    return found / "tests"


def keys() -> dict[str, str]:
    """Return the keys of the accounts, as the stand-in has them."""
    file = STAND_IN / "devtools_testutils" / "fake_credentials.py"
    found: dict[str, str] = runpy.run_path(str(file))["KEYS"]
    return found


class Server:
    """`partita serve` over https with the accounts of the suites."""

    def __init__(self, folder: Path) -> None:
        from support.live import LiveServer

        self._keys = keys()
        self._certificate = folder / "certificate.pem"
        names = [f"--host=*.{service}.core.windows.net" for service in ("blob", "queue", "table")]
        _partita("certificate", "make", "--to", str(folder), *names)
        os.environ["PARTITA_ACCOUNTS"] = ";".join(
            f"{name}:{key}" for name, key in self._keys.items()
        )
        self._live = LiveServer(
            folder,
            "--in-memory",
            *("--oauth", "development", "--tls-cert", str(self._certificate)),
            *("--tls-key", str(folder / "key.pem")),
        )
        self._ports = {
            service: urlsplit(self._live.announced[f"{service}_endpoint"]).port
            for service in ("blob", "queue", "table")
        }
        self._log("pystorage")
        self._keep("pysoftdelete", "--deleted-days", "2", "--deleted-containers-days", "2")
        self._keep("pyversioned", "--versions", "on", "--deleted-days", "2")

    def _keep(self, account: str, *flags: str) -> None:
        endpoint = f"https://127.0.0.1:{self._ports['blob']}/{account}"
        text = f"AccountName={account};AccountKey={self._keys[account]};BlobEndpoint={endpoint}"
        _partita("blobs", "keep", "--connect", text, *flags, **self.trust)

    def _log(self, account: str) -> None:
        """Switch the logs of blobs on: a test expects their container."""
        from azure.storage.blob import BlobAnalyticsLogging, BlobServiceClient

        endpoint = f"https://127.0.0.1:{self._ports['blob']}/{account}"
        credential = {"account_name": account, "account_key": self._keys[account]}
        trust = str(self._certificate)
        with BlobServiceClient(endpoint, credential, connection_verify=trust) as client:
            client.set_service_properties(analytics_logging=BlobAnalyticsLogging(delete=True))

    @property
    def trust(self) -> dict[str, str]:
        """The variables by which clients trust the certificate."""
        names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")
        return dict.fromkeys(names, str(self._certificate))

    @property
    def variables(self) -> dict[str, str]:
        ports = ",".join(f"{service}={port}" for service, port in self._ports.items())
        return self.trust | {"SUITE_PORTS": ports}

    def stop(self) -> None:
        self._live.stop()


def _partita(*arguments: str, **variables: str) -> None:
    command = [sys.executable, "-m", "partita.cli.main", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | variables)


def outcomes(suite: dict[str, Any], server: Server, selected: list[str]) -> dict[str, set[str]]:
    """Run a suite; return the names of the tests by their outcome."""
    folder = sources(suite["package"])
    files = [name for name in suite["files"] if (folder / name).exists()]
    command = [
        *(ENVIRONMENT / "bin" / "python", "-m", "pytest", "-q", "-rA", "--no-header"),
        *("-p", "suite_plugin", "-p", "no:cacheprovider", "-c", HERE / "suites.ini"),
        *("--rootdir", folder, "--timeout", str(TEST_SECONDS_MAX), "--tb=short"),
        *(*selected, *files),
    ]
    variables = {
        "PYTHONPATH": str(STAND_IN),
        "SUITE_SLEEPS": "1" if suite.get("waits") else "",
        "AZURE_TEST_RUN_LIVE": "true",
    }
    with (ENVIRONMENT / f"{suite['package']}.log").open("w+", encoding="utf-8") as log:
        environment = os.environ | variables | server.variables
        subprocess.run(command, cwd=folder, env=environment, stdout=log, check=False)
        log.seek(0)
        text = log.read()
    found: dict[str, set[str]] = {}
    for outcome, name in OUTCOME.findall(text):
        found.setdefault("FAILED" if outcome == "ERROR" else outcome, set()).add(name)
    return found


def report(name: str, suite: dict[str, Any], found: dict[str, set[str]]) -> bool:
    """Print the figures of a suite; return whether they are the expected ones."""
    passed, failed = found.get("PASSED", set()), found.get("FAILED", set())
    expected = {test for reason in suite.get("fails", []) for test in reason["tests"]}
    by_file: dict[str, list[int]] = {}
    for test in sorted(passed | failed):
        counted = by_file.setdefault(test.partition("::")[0], [0, 0])
        counted[0] += test in passed
        counted[1] += 1
    for file, (good, all_of_it) in by_file.items():
        print(f"  {file}: {good} of {all_of_it}")
    short = {test.rpartition("::")[2] for test in failed}
    unexpected = sorted(test for test in failed if test.rpartition("::")[2] not in expected)
    for test in unexpected:
        print(f"  failed: {test}")
    for test in sorted(expected - short & expected):
        if any(each.rpartition("::")[2] == test for each in passed):
            print(f"  passed, though it is listed as failing: {test}")
    print(f"{name}: {len(passed)} of {len(passed) + len(failed)} passed", flush=True)
    return not unexpected


def main() -> int:
    suites = tomllib.loads((HERE / "expected.toml").read_text("utf-8"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suites", nargs="*", choices=[[], *suites], help="all if none is given")
    given, selected = parser.parse_known_args()
    is_good = True
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            for name in given.suites or suites:
                found = outcomes(suites[name], server, selected)
                is_good = report(name, suites[name], found) and is_good
        finally:
            server.stop()
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
