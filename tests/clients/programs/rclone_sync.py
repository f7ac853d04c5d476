import os
import pathlib
import subprocess
import tempfile

ENVIRONMENT = os.environ | {
    "RCLONE_CONFIG_P_TYPE": "azureblob",
    "RCLONE_CONFIG_P_CONNECTION_STRING": os.environ["AZURE_STORAGE_CONNECTION_STRING"],
}


def rclone(*words: str) -> str:
    command = ["rclone", "--config", "", "--retries", "1", *words]
    return subprocess.run(
        command, env=ENVIRONMENT, check=True, capture_output=True, text=True
    ).stdout


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    (folder / "a").mkdir()
    (folder / "a" / "large").write_bytes(os.urandom(9_000_000))
    (folder / "b.txt").write_text("b")
    rclone("mkdir", "p:rclone")
    rclone("sync", name, "p:rclone/there", "--azureblob-chunk-size", "4M")
    rclone("check", name, "p:rclone/there")
    assert sorted(rclone("lsf", "-R", "p:rclone/there").split()) == ["a/", "a/large", "b.txt"]
    rclone("copy", "p:rclone/there", f"{name}-back")
    assert pathlib.Path(f"{name}-back", "b.txt").read_text() == "b"
    (folder / "b.txt").unlink()
    rclone("sync", name, "p:rclone/there")
    assert sorted(rclone("lsf", "-R", "p:rclone/there").split()) == ["a/", "a/large"]
    rclone("purge", "p:rclone")
