import msgspec
import pytest

from partita.errors import ConfigurationError, NotDurableError, PartitaError, UnavailableError
from partita.scaleout.connections.checks import Facts, check, judge
from partita.storage.durability import Durability

GOOD = Facts(
    version=180004,
    pid=1,
    is_in_recovery=False,
    read_only="off",
    fsync="on",
    full_page_writes="on",
    synchronous_commit="on",
    data_sync_retry="off",
    isolation="read committed",
    encoding="UTF8",
    locale_provider="c",
    locale="C",
    started="2026-01-01",
)


def test_a_good_server_is_accepted() -> None:
    check(GOOD, Durability.FULL)
    check(msgspec.structs.replace(GOOD, synchronous_commit="remote_apply"), Durability.FULL)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("fsync", "off"),
        ("full_page_writes", "off"),
        ("data_sync_retry", "on"),
        ("synchronous_commit", "off"),
        ("synchronous_commit", "local"),
        ("synchronous_commit", "remote_write"),
    ],
)
def test_a_server_that_can_lose_writes_is_accepted_only_with_fast(name: str, found: str) -> None:
    facts = msgspec.structs.replace(GOOD, **{name: found})

    with pytest.raises(NotDurableError) as caught:
        check(facts, Durability.FULL)
    assert caught.value.code == "StoreNotDurable"
    assert caught.value.facts == {"setting": name, "found": found}
    check(facts, Durability.FAST)
    assert [each.name for each in judge(facts, Durability.FULL) if each.error] == [name]


@pytest.mark.parametrize(
    ("name", "found", "kind"),
    [
        ("version", 160014, ConfigurationError),
        ("encoding", "SQL_ASCII", ConfigurationError),
        ("isolation", "serializable", ConfigurationError),
        ("is_in_recovery", True, UnavailableError),
        ("read_only", "on", UnavailableError),
    ],
)
@pytest.mark.parametrize("durability", list(Durability))
def test_a_server_that_is_unfit_is_always_refused(
    name: str, found: object, kind: type[PartitaError], durability: Durability
) -> None:
    with pytest.raises(kind) as caught:
        check(msgspec.structs.replace(GOOD, **{name: found}), durability)

    assert caught.value.code == "StoreUnfit"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("provider", "locale", "by_bytes"),
    [("c", "C", True), ("c", "en_US.UTF-8", False), ("b", "C.UTF-8", True), ("i", "und", False)],
)
def test_which_locales_sort_by_code_points(provider: str, locale: str, by_bytes: bool) -> None:
    facts = msgspec.structs.replace(GOOD, locale_provider=provider, locale=locale)

    assert facts.sorts_by_bytes is by_bytes
