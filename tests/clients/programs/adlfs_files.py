import os

import fsspec

store = fsspec.filesystem("abfs", connection_string=os.environ["AZURE_STORAGE_CONNECTION_STRING"])
store.mkdir("adlfs-files")
store.pipe("adlfs-files/a/one.bin", b"1" * 300_000)
store.pipe({"adlfs-files/a/two.txt": b"two", "adlfs-files/b/three.txt": b"three"})
assert sorted(store.ls("adlfs-files/a")) == ["adlfs-files/a/one.bin", "adlfs-files/a/two.txt"]
with store.open("adlfs-files/a/one.bin", "rb") as file:
    file.seek(299_990)
    assert file.read() == b"1" * 10
store.mv("adlfs-files/a/two.txt", "adlfs-files/b/two.txt")
assert store.find("adlfs-files/b") == ["adlfs-files/b/three.txt", "adlfs-files/b/two.txt"]
store.rm("adlfs-files", recursive=True)
assert not store.exists("adlfs-files")
