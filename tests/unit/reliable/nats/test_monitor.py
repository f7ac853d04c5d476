import pytest

from partita.errors import ConfigurationError, NotDurableError
from partita.reliable.nats.monitor import (
    ClusterStatus,
    Meta,
    NodeStatus,
    Peer,
    StoreSettings,
    StoreStatus,
    check_authenticated,
    check_durable,
    monitor_urls,
)


def a_node(
    name: str, *, leader: str = "one", peers: tuple[Peer, ...] = (), syncs: bool = True
) -> NodeStatus:
    meta = Meta(leader=leader, replicas=peers, cluster_size=3)
    return NodeStatus(
        name,
        jetstream=StoreStatus(StoreSettings(sync_always=syncs), meta),
        cluster=ClusterStatus("partita"),
    )


TWO, THREE = Peer("two", current=True), Peer("three", current=True)
LEADER = a_node("one", peers=(TWO, THREE))


def test_three_nodes_that_sync_are_durable() -> None:
    assert check_durable([LEADER, a_node("two"), a_node("three")], []) == []


def test_one_node_that_does_not_sync_is_named() -> None:
    with pytest.raises(NotDurableError) as caught:
        check_durable([LEADER, a_node("two", syncs=False), a_node("three")], [])

    assert caught.value.facts["nodes"] == "two"
    assert "sync_interval: always" in caught.value.hint


def test_a_node_that_takes_part_must_have_answered() -> None:
    with pytest.raises(NotDurableError) as caught:
        check_durable([LEADER, a_node("two")], ["http://one:8222"])

    assert caught.value.facts == {"asked": "http://one:8222", "nodes": "three"}


@pytest.mark.parametrize("peer", [Peer("three", offline=True), Peer("three", active=6 * 10**9)])
def test_a_node_that_is_down_is_told_and_tolerated(peer: Peer) -> None:
    leader = a_node("one", peers=(TWO, peer))

    assert check_durable([leader, a_node("two")], []) == ["three"]


def test_a_node_that_a_new_leader_has_not_heard_is_down_only_after_a_while() -> None:
    statuses = [a_node("one", peers=(TWO, Peer("three"))), a_node("two")]

    with pytest.raises(NotDurableError):
        check_durable(statuses, [], waited=1.0)
    assert check_durable(statuses, [], waited=6.0) == ["three"]


def test_without_the_leader_nobody_knows_who_takes_part() -> None:
    with pytest.raises(NotDurableError):
        check_durable([a_node("two"), a_node("three")], [])
    with pytest.raises(NotDurableError):
        check_durable([], [])


def test_a_leader_that_does_not_know_all_its_peers_yet_does_not_count() -> None:
    with pytest.raises(NotDurableError):
        check_durable([a_node("one", peers=(TWO,)), a_node("two")], [])


def test_a_node_of_a_cluster_that_has_no_group_yet_does_not_count_as_alone() -> None:
    starting = NodeStatus(
        "one", jetstream=StoreStatus(StoreSettings(sync_always=True)), cluster=ClusterStatus("c")
    )

    with pytest.raises(NotDurableError):
        check_durable([starting], [])


def test_one_server_alone_is_durable_if_it_syncs() -> None:
    alone = NodeStatus("one", jetstream=StoreStatus(StoreSettings(sync_always=True)))

    assert check_durable([alone], []) == []


def test_servers_without_jetstream_are_refused() -> None:
    with pytest.raises(ConfigurationError):
        check_durable([NodeStatus("one")], [])


def test_the_monitoring_port_lies_4000_above_the_client_port() -> None:
    urls = ["nats://a:b@one:4222", "nats://one:4222", "tls://[::1]:5000"]

    assert monitor_urls(urls) == ["http://one:8222", "http://[::1]:9000"]


def test_a_client_with_tls_asks_over_https() -> None:
    urls = ["tls://ada:secret@one:4222", "tls://[::1]:5000"]

    assert monitor_urls(urls, is_tls=True) == ["https://one:8222", "https://[::1]:9000"]


def test_a_page_that_anyone_on_the_network_could_answer_is_not_asked_with_tls() -> None:
    urls = ["https://one:8222", "http://two:8222", "http://ada:secret@10.0.0.3:8222"]

    with pytest.raises(ConfigurationError) as caught:
        check_authenticated(urls, is_tls=True)

    assert caught.value.code == "MonitorNotAuthenticated"
    assert caught.value.facts == {"monitor": "http://two:8222,http://***@10.0.0.3:8222"}


def test_a_page_of_this_machine_or_without_tls_is_asked_over_http() -> None:
    check_authenticated(["http://127.0.0.1:8222", "http://[::1]:8222"], is_tls=True)
    check_authenticated(["http://two:8222"], is_tls=False)
