import os
import pathlib
import tempfile

from azure.storage.blob import BlobServiceClient
from mlflow.artifacts import download_artifacts
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

text = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
BlobServiceClient.from_connection_string(text).create_container("mlflow")
account = dict(part.split("=", 1) for part in text.split(";"))["AccountName"]
where = f"wasbs://mlflow@{account}.blob.core.windows.net/runs/1"
repository = get_artifact_repository(where)
with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    (folder / "model").mkdir()
    (folder / "model" / "weights.bin").write_bytes(os.urandom(3_000_000))
    (folder / "model" / "notes.txt").write_text("first")
    repository.log_artifacts(name)
    assert [each.path for each in repository.list_artifacts("model")] == [
        "model/notes.txt",
        "model/weights.bin",
    ]
    back = pathlib.Path(download_artifacts(artifact_uri=f"{where}/model", dst_path=f"{name}/back"))
    assert (back / "weights.bin").read_bytes() == (folder / "model/weights.bin").read_bytes()
    repository.delete_artifacts("model")
    assert repository.list_artifacts("model") == []
