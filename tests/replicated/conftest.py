from collections.abc import Iterator

import pytest

from support.cluster import Cluster, running_cluster


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("nats")) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """The session's cluster, whole before and after each test."""
    yield shared_cluster
    if shared_cluster.sync_interval != "always":  # left by a test that failed
        shared_cluster.sync_interval = "always"
        for index in range(len(shared_cluster.nodes)):
            shared_cluster.restart(index)
    shared_cluster.heal()
