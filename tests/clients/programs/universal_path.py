import os

from upath import UPath

options = {"connection_string": os.environ["AZURE_STORAGE_CONNECTION_STRING"]}
root = UPath("abfs://upath/", **options)
root.fs.mkdir("upath")
(root / "a.txt").write_text("one")
assert [path.name for path in root.iterdir()] == ["a.txt"]
assert (root / "a.txt").read_text() == "one"
