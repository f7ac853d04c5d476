"""Objects in a folder that several front ends share."""

from pathlib import Path

from partita.blobs.store.files import FileSystem
from partita.scaleout.blobs.objects import SharedFolder


class OtherFirst(FileSystem):
    """Another front end writes the owner before this one's file gets its name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rename(self, path: Path, new_path: Path) -> None:
        SharedFolder(self.folder).set_owner("database")
        super().rename(path, new_path)


def test_front_ends_that_start_together_both_write_the_owner(tmp_path: Path) -> None:
    SharedFolder(tmp_path, OtherFirst(tmp_path)).set_owner("database")

    assert SharedFolder(tmp_path).find_owner() == "database"
    assert list((tmp_path / "blobs" / "incoming").iterdir()) == []
