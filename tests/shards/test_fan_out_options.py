"""Options of a fan-out: order, shards by URL, wrong types, unread results."""

import gc
import time
from collections.abc import Iterator

import pytest
from sqlalchemy import Float, select

from partita.errors import ConfigurationError, InvalidRequestError
from partita.shards.fan_out.plan import fan_out_plan
from partita.shards.fan_out.threads import _ThreadStream
from support.shop import Blog, Shop, a_shared_shop


@pytest.fixture
def shop() -> Iterator[Shop]:
    with a_shared_shop("sqlite") as made:
        yield made


def test_rows_are_ordered_by_floating_numbers(shop: Shop) -> None:
    tenth = (Blog.tenant_id / 10.0).cast(Float)
    rows = shop.fan_out(select(Blog.tenant_id), order_by=tenth.desc(), limit=3)
    assert [row.tenant_id for row in rows] == [201, 150, 42]


def test_shards_of_a_fan_out_may_be_named_by_their_urls(shop: Shop) -> None:
    rows = shop.fan_out(select(Blog.tenant_id), shards=[shop.urls[0], shop.shards[2].location])
    assert sorted(row.tenant_id for row in rows) == [1, 42, 201]


@pytest.mark.parametrize("absent", [None, ""])
def test_a_shard_that_is_not_given_is_refused_before_any_is_asked(
    shop: Shop, absent: object
) -> None:
    events: list[object] = []

    with pytest.raises(ConfigurationError, match="InvalidLocation"):
        shop.fan_out(
            select(Blog.tenant_id), shards=[shop.shards[0], absent], on_event=events.append
        )

    assert events == []


@pytest.mark.parametrize("options", [{"keys": "tenants"}, {"limit": "2"}, {"workers": 1.5}])
def test_an_option_of_another_type_is_refused(shop: Shop, options: dict[str, object]) -> None:
    with pytest.raises(InvalidRequestError, match="InvalidFanOutOption"):
        shop.fan_out(select(Blog.tenant_id), **options)


def test_a_stream_that_is_interrupted_leaves_no_noise_in_the_log(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    stream = _ThreadStream(0, fan_out_plan(shop.map, select(Blog.tenant_id), {}))
    stream.open()
    stream.reader.execute()
    stream.interrupt()
    stream.release()
    assert caplog.records == []


def test_a_result_that_nobody_reads_gives_its_connections_back(shop: Shop) -> None:
    result = shop.fan_out(select(Blog.tenant_id))
    run = result._run
    del result
    gc.collect()
    while run._open or run._working:
        time.sleep(0.005)
    pool = shop.manager.engines.for_location(shop.shards[0].location).pool
    assert pool.status().endswith("connections: 0")
