import os
import pathlib
import subprocess
import tempfile

text = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
parts = dict(part.split("=", 1) for part in text.split(";"))
where = f"{parts['BlobEndpoint']}/barman/walls"


def barman(verb: str, *words: str) -> str:
    command = [f"barman-cloud-{verb}", "--cloud-provider", "azure-blob-storage", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    segment = folder / "000000010000000000000001"
    segment.write_bytes(os.urandom(16 * 1024 * 1024))
    barman("wal-archive", "--test", where, "db1", str(segment))
    barman("wal-archive", "--gzip", where, "db1", str(segment))
    barman("wal-restore", where, "db1", segment.name, str(folder / "back"))
    assert (folder / "back").read_bytes() == segment.read_bytes()
    assert "000000010000000000000001" not in barman("backup-list", where, "db1")
