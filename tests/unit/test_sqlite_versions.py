import pytest

from partita.sqlite_versions import has_wal_reset_bug, version_of


@pytest.mark.parametrize(
    "text",
    [
        "3.7.0",
        "3.40.1",
        "3.44.5",
        "3.45.0",
        "3.46.1",
        "3.49.2",
        "3.50.0",
        "3.50.6",
        "3.51.0",
        "3.51.2",
    ],
)
def test_versions_up_to_3_51_2_have_the_bug(text: str) -> None:
    assert has_wal_reset_bug(version_of(text)) is True


@pytest.mark.parametrize(
    "text",
    ["3.6.23", "3.44.6", "3.44.7", "3.50.7", "3.50.8", "3.51.3", "3.52.0", "3.53.0", "4.0.0"],
)
def test_later_versions_and_the_branches_with_the_fix_do_not(text: str) -> None:
    assert has_wal_reset_bug(version_of(text)) is False


def test_a_version_of_four_numbers_is_read_by_its_first_three() -> None:
    assert version_of("3.51.3.1") == (3, 51, 3)
