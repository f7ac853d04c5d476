"""Files of the console: the oldest goes first, but never one that a job uses."""

from partita.clock import SystemClock
from partita.console.transfers.files import FILES_MAX, Files


def test_the_oldest_file_is_removed_for_a_new_one() -> None:
    files = Files(SystemClock())
    kept = [files.new(f"{number}.csv") for number in range(FILES_MAX + 1)]

    assert [each.path.parent.exists() for each in kept] == [False] + [True] * FILES_MAX
    files.close()
    assert not kept[-1].path.parent.exists()


def test_a_file_that_a_job_uses_stays() -> None:
    files = Files(SystemClock())
    used = files.new("export.jsonl")
    with files.using(used):
        others = [files.new(f"{number}.csv") for number in range(FILES_MAX)]
        assert used.path.parent.exists()
        assert not others[0].path.parent.exists()

    files.new("next.csv")
    assert not used.path.parent.exists()
    files.close()


def test_a_name_cannot_leave_its_folder() -> None:
    files = Files(SystemClock())
    kept = files.new("../../etc/passwd")

    assert kept.path.parent.name == kept.identity
    assert "/" not in kept.name
    files.close()
