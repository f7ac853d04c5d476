"""What `make proof` runs and `make test` leaves out, besides the tests that are marked `proof`.

Each claim keeps a quick test in `make test`: a killed table server, a power cut of tables, a torn
log, simulated quorum logs, shard maps on SQLite, typed entities in this process.
"""

from pathlib import Path

FILES = {
    *("crash/test_blob_kill.py", "crash/test_blob_power_cut.py", "crash/test_linearizability.py"),
    *("crash/test_queue_disk_full.py", "crash/test_queue_kill.py", "crash/test_queue_power_cut.py"),
    *("crash/test_reliable_disk.py", "crash/test_reliable_kill.py"),
    *("crash/test_reliable_power_cut.py", "docs/test_reliable_tutorial.py"),
    *("patterns/test_plugin.py", "shards/test_catalog_model.py", "shards/test_move_crash.py"),
    *("simulation/test_partitions.py", "simulation/test_replicas.py"),
}
"""Files that start many processes, or repeat long histories."""
TESTS = {
    *(
        "test_the_tutorial_of_patterns_goes_as_it_says",
        "test_the_tutorial_of_shards_goes_as_it_says",
    ),
    "test_a_single_partition_is_throttled_where_spread_keys_pass",
    "test_account_sas_grants_by_service_resource_and_letter",
    "test_members_share_replicas_and_primaries_evenly_and_reach_every_key",
    "test_users_pass_the_type_checker_without_a_plug_in_and_are_told_of_mistakes",
    "test_writers_that_are_killed_leave_catalogs_that_agree_after_repair",
}
ON_SQLITE_FIRST = {
    *("test_drift.py", "test_fleet.py", "test_manager.py", "test_migrations.py", "test_offline.py"),
    *("test_operations.py", "test_recovery.py", "test_retry.py", "test_row_keys.py"),
    *("test_move_writers.py", "test_writers.py"),
}
"""Of tests/shards: `make test` runs them on SQLite, `make proof` on PostgreSQL too."""
SERVED = {"test_groups.py", "test_queries.py", "test_verbs.py"}
"""Of tests/patterns: `make test` runs these against a server too, `make proof` the others."""


def is_proof(path: Path, name: str, variant: str) -> bool:
    """Return whether a test is left to `make proof`; `variant` is the text of its parameters."""
    folder = path.parent.name
    if f"{folder}/{path.name}" in FILES or name in TESTS:
        return True
    if folder == "shards" and path.name in ON_SQLITE_FIRST:
        return "postgresql" in variant
    return folder == "patterns" and path.name not in SERVED and "served" in variant.split("-")
