import os

from azure.storage.blob import BlobServiceClient
from cloudpathlib import AzureBlobClient

text = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
BlobServiceClient.from_connection_string(text).create_container("paths")
client = AzureBlobClient(connection_string=text)
root = client.CloudPath("az://paths/")
(root / "a" / "one.txt").write_text("one")
(root / "a" / "two.txt").write_text("two")
assert sorted(path.name for path in (root / "a").glob("*.txt")) == ["one.txt", "two.txt"]
(root / "a" / "one.txt").rename(root / "b.txt")
assert (root / "b.txt").read_text() == "one"
(root / "b.txt").unlink()
assert not (root / "b.txt").exists()
