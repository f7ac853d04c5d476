import os
import pathlib
import subprocess
import tempfile

ENVIRONMENT = os.environ | {
    "RCLONE_CONFIG_P_TYPE": "azureblob",
    "RCLONE_CONFIG_P_CONNECTION_STRING": os.environ["AZURE_STORAGE_CONNECTION_STRING"],
    "RESTIC_REPOSITORY": "rclone:p:restic/repository",
    "RESTIC_PASSWORD": "of a test",
}


def run(*words: str) -> str:
    return subprocess.run(words, env=ENVIRONMENT, check=True, capture_output=True, text=True).stdout


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    (folder / "in").mkdir()
    (folder / "in" / "large").write_bytes(os.urandom(20_000_000))
    run("rclone", "mkdir", "p:restic")
    run("restic", "init")
    run("restic", "backup", str(folder / "in"))
    (folder / "in" / "b.txt").write_text("b")
    run("restic", "backup", str(folder / "in"))
    run("restic", "check", "--read-data")
    run("restic", "restore", "latest", "--target", str(folder / "out"))
    restored = folder / "out" / folder.relative_to("/") / "in"
    assert (restored / "large").read_bytes() == (folder / "in" / "large").read_bytes()
    run("restic", "forget", "--keep-last", "1", "--prune")
