"""The metrics of shards in `partita.metrics.render()`."""

import gc

from sqlalchemy import select

from partita.metrics import render
from partita.shards.maps.manager import ShardMapManager
from partita.shards.moving import move
from partita.shards.moving.move import MoveProgress
from shards.moves import NewDatabase, blog, two_shards


def values(manager: ShardMapManager) -> dict[str, float]:
    """Return the values of a manager by name, without the label of its catalog."""
    label = f'catalog="{manager.executor.catalog.text}"'
    found = {}
    for line in render().splitlines():
        if label in line:
            name, _, value = line.rpartition(" ")
            found[name.replace(label, "").replace("{}", "").replace("{,", "{")] = float(value)
    return found


def test_routes_fan_outs_and_moves_are_counted(new_sqlite: NewDatabase) -> None:
    with two_shards(new_sqlite) as moving:
        steps = set[str]()

        def look(_: MoveProgress) -> None:
            steps.update(name for name in values(moving.manager) if "move_step" in name)

        before = values(moving.manager)
        for tenant in (1, 42, 150):
            with moving.tenants.connect(tenant) as connection:
                connection.execute(select(blog)).all()
        moving.tenants.fan_out(select(blog.c.id)).all()
        report = move.move(moving.manager, moving.low, moving.two, on_progress=look)
        with moving.tenants.connect(1) as connection:
            connection.execute(select(blog)).all()
        after = values(moving.manager)

    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["partita_shard_routes_total"] == 4
    assert grown["partita_shard_stale_reroutes_total"] == 0, "the mover's own cache is current"
    assert grown["partita_shard_fan_outs_total"] == 1
    assert grown["partita_shard_fan_out_shards_total"] == 2
    assert grown["partita_shard_fan_out_failures_total"] == 0
    assert grown["partita_shard_moves_total"] == 1
    assert grown["partita_shard_move_rows_total"] == report.rows > 0
    assert after["partita_shard_move_fence_seconds_count"] == 1
    assert after["partita_shard_move_fence_seconds_sum"] > 0
    assert 'partita_shard_move_step{step="copy"}' in steps
    assert not any("move_step" in name for name in after), "no move is running"


def test_a_stale_route_is_counted_and_a_manager_that_is_gone_is_not_printed(
    new_sqlite: NewDatabase,
) -> None:
    with two_shards(new_sqlite) as moving:
        other = ShardMapManager.open(moving.catalog_url)
        text = other.executor.catalog.text
        tenants = other.get_map("tenants")
        with tenants.connect(1) as connection:
            connection.execute(select(blog)).all()
        move.move(moving.manager, moving.low, moving.two)
        with tenants.connect(1) as connection:
            connection.execute(select(blog)).all()
        counters = other.counters
        shown = render()
        other.close()
        del other, tenants, connection
        gc.collect()
        left = render()

    assert (counters["routes"], counters["reroutes"]) == (2, 1)
    assert f'partita_shard_stale_reroutes_total{{catalog="{text}#2"}} 1' in shown
    assert f'catalog="{text}#2"' not in left
