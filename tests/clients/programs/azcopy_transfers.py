import os
import pathlib
import subprocess
import tempfile
from datetime import UTC, datetime, timedelta

from azure.storage.blob import BlobServiceClient, ContainerSasPermissions, generate_container_sas

text = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
service = BlobServiceClient.from_connection_string(text)
container = service.create_container("azcopy")
sas = generate_container_sas(
    service.account_name,
    "azcopy",
    account_key=service.credential.account_key,
    permission=ContainerSasPermissions.from_string("racwdl"),
    expiry=datetime.now(UTC) + timedelta(hours=1),
)


def azcopy(*words: str) -> None:
    done = subprocess.run(["azcopy", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name, "photos")
    os.environ["AZCOPY_LOG_LOCATION"] = os.environ["AZCOPY_JOB_PLAN_LOCATION"] = name
    folder.mkdir()
    (folder / "large").write_bytes(os.urandom(20_000_000))
    (folder / "b.txt").write_text("b")
    there = f"{container.url}?{sas}"
    azcopy("copy", f"{folder}/*", there, "--from-to=LocalBlob", "--block-size-mb=4")
    assert sorted(each.name for each in container.list_blobs()) == ["b.txt", "large"]
    (folder / "b.txt").unlink()
    azcopy("sync", str(folder), there, "--from-to=LocalBlob", "--delete-destination=true")
    assert [each.name for each in container.list_blobs()] == ["large"]
    azcopy("copy", f"{container.url}/large?{sas}", f"{name}/back", "--from-to=BlobLocal")
    assert pathlib.Path(name, "back").read_bytes() == (folder / "large").read_bytes()
    azcopy("remove", there, "--from-to=BlobTrash", "--recursive")
    assert not [*container.list_blobs()]
