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
    *("console/test_operations.py", "console/test_patterns_views.py", "console/test_queues.py"),
    *("crash/test_disk_full.py", "crash/test_reliable_checkpoint.py", "docs/test_paths.py"),
    *("docs/test_patterns_tutorial.py", "replicated/test_nats_command.py"),
    *("replicated/test_observers.py", "scaleout/test_blobs_of_front_ends.py"),
    *("scaleout/test_queue_front_ends.py", "shards/test_pooler.py", "shards/test_rights.py"),
    *("storage/test_vacuum.py", "wire/test_compressed_backup.py", "wire/test_enforce_targets.py"),
    *("wire/test_patterns_command.py", "wire/test_patterns_grants.py"),
    *("scaleout/test_two_front_ends.py", "shards/test_recovery.py", "wire/test_table_restore.py"),
    "replicated/test_replicas.py",
}
"""Files that start many processes, or repeat long histories."""
TESTS = {
    *(
        "test_the_tutorial_of_patterns_goes_as_it_says",
        "test_the_tutorial_of_shards_goes_as_it_says",
    ),
    "test_a_catalog_that_does_not_exist_is_an_error",
    "test_a_copy_that_is_killed_ends_as_if_it_was_not",
    "test_a_folder_that_a_program_has_open_is_refused_and_read_later",
    "test_a_served_account_keeps_its_logs_and_metrics_across_a_stop",
    "test_an_export_that_is_killed_ends_as_if_it_was_not",
    "test_client_that_reads_a_little_again_and_again_is_not_cut_off",
    "test_many_consumers_with_aborts_keep_the_order_and_lose_nothing",
    "test_many_consumers_with_aborts_lose_nothing_and_double_nothing",
    "test_progress_is_drawn_for_people_only",
    "test_the_example_of_patterns_runs_in_one_process",
    "test_the_typed_entities_of_the_readme_go_as_it_says",
    "test_two_front_ends_write_logs_of_their_own_and_add_up_their_metrics",
    "test_a_change_that_fails_and_cannot_be_taken_back_is_ended_by_the_next",
    "test_a_damaged_file_does_not_keep_a_server_from_starting",
    "test_a_password_reaches_the_processes_and_nothing_else",
    "test_a_primary_that_does_not_know_of_its_fall_never_acknowledges",
    "test_a_server_without_heat_writes_no_file",
    "test_a_server_that_never_answers_holds_nobody_up",
    "test_a_server_that_never_answers_is_unreachable_before_long",
    "test_a_setting_that_the_server_refuses_is_quoted",
    "test_a_single_partition_is_throttled_where_spread_keys_pass",
    "test_a_slow_request_is_asked_again_but_not_begun_again",
    "test_a_state_is_given_where_its_primary_is_and_elsewhere_its_address",
    "test_a_worker_that_lost_its_server_still_stops",
    "test_a_server_runs_from_and_in_a_folder_that_other_users_cannot_enter",
    "test_shards_that_are_past_the_target_are_failures",
    "test_table_sas_writes_and_reads_only_inside_its_range",
    "test_account_sas_grants_by_service_resource_and_letter",
    "test_a_shard_whose_file_is_lost_is_reported_and_not_made_again",
    "test_a_table_can_be_dropped_on_a_full_disk",
    "test_failures_in_processes_are_the_same_errors",
    "test_generated_files_are_up_to_date",
    "test_killed_backup_leaves_no_backup",
    "test_many_large_messages_are_read_in_order",
    "test_members_share_replicas_and_primaries_evenly_and_reach_every_key",
    "test_messages_wait_for_what_comes",
    "test_one_consumer_serves_a_long_read",
    "test_reads_go_on_when_the_disk_is_full",
    "test_readers_see_the_old_or_the_new_state_at_every_step",
    "test_the_command_line_has_the_flag_and_clients_survive_it",
    "test_the_example_of_shards_runs",
    "test_the_same_cuts_find_the_writes_that_fast_durability_may_lose",
    "test_the_retention_holds_every_day_for_200_days",
    "test_threads_read_beside_a_writer_and_never_see_the_past",
    "test_two_members_cannot_share_a_folder",
    "test_users_pass_the_type_checker_without_a_plug_in_and_are_told_of_mistakes",
    "test_a_move_draws_progress_on_terminals_only",
    "test_a_move_of_several_keys_asks_on_a_terminal",
    "test_yes_answers_the_question_in_advance",
    "test_a_locked_mapping_is_changed_with_its_token_only",
    "test_upgrade_brings_every_shard_to_the_newest_revision",
    "test_a_map_is_deleted_when_its_shards_are_gone",
    "test_move_of_a_range_carries_every_mapping_in_it",
    "test_move_of_a_key_of_a_hash_map_moves_its_bucket",
    "test_move_of_a_key_splits_it_off_and_moves_it_alone",
    "test_a_shard_is_removed_after_its_mappings_were_moved",
    "test_recover_can_be_limited_to_some_keys",
    "test_cancel_takes_a_stopped_move_back",
    "test_keys_of_a_list_map_are_mapped_one_by_one",
    "test_a_pipe_that_nobody_reads_does_not_hold_the_server",
    "test_client_that_reads_slowly_holds_a_few_pieces",
    "test_reading_pauses_while_nobody_takes_the_body",
    "test_client_that_reads_nothing_of_a_download_is_cut_off",
    "test_items_that_others_took_are_forgotten_where_nobody_takes",
    "test_a_claim_takes_as_many_steps_whatever_the_queue_holds",
    "test_a_move_between_kinds_of_databases_is_refused",
    "test_every_flipped_byte_is_refused",
    "test_a_hand_over_reaches_the_chosen_replica_and_keeps_what_was_acknowledged",
    "test_a_design_meets_the_published_targets_before_it_meets_the_cloud",
    "test_an_import_that_is_killed_ends_as_if_it_was_not",
    "test_the_purge_of_a_dropped_table_goes_on_after_a_crash",
    "test_a_registry_that_cannot_be_reached_is_the_reason",
    "test_an_export_to_a_full_disk_is_one_line_and_continues",
    "test_a_session_on_asyncpg_follows_a_move",
    "test_groups_on_hot_keys_are_whole",
    "test_a_rebuild_draws_its_progress_on_a_terminal",
    "test_a_service_that_was_closed_everywhere_is_found_again",
    "test_without_a_process_that_holds_it_a_partition_is_unavailable",
    "test_an_older_worker_leaves_a_move_whose_followers_it_does_not_know",
    "test_what_is_just_within_the_limits_is_written",
    "test_a_passphrase_gives_the_same_key_again",
    "test_a_passphrase_typed_with_other_code_points_is_the_same",
    "test_the_live_view_shows_sorts_filters_and_pauses",
    "test_points_and_shards_that_two_managers_change_at_random_agree_in_both_catalogs",
    "test_writers_that_are_killed_leave_catalogs_that_agree_after_repair",
}
ON_SQLITE_FIRST = {
    *("test_async_fan_out.py", "test_drift.py", "test_fan_out.py", "test_fleet.py"),
    *("test_manager.py", "test_maps.py", "test_migrations.py", "test_move.py"),
    *("test_move_writers.py", "test_offline.py", "test_operations.py", "test_recovery.py"),
    *("test_retry.py", "test_row_keys.py", "test_writers.py"),
}
"""Of tests/shards: `make test` runs them on SQLite, `make proof` on PostgreSQL too."""
ON_POSTGRESQL_TOO = {
    "test_a_client_that_slept_through_the_move_is_rerouted",
    "test_a_move_can_be_cancelled_before_the_switch",
    "test_a_move_carries_all_rows_and_leaves_none_behind",
    "test_a_move_that_is_stopped_can_be_resumed",
    "test_changes_while_it_moves_arrive",
    "test_managers_that_change_one_shard_together_take_turns",
    "test_many_rows_stream",
    "test_rows_of_all_shards_come_once",
    "test_the_whole_fan_out_has_a_time_limit",
}
"""Of these files: what PostgreSQL does in another way than SQLite, in `make test` as well."""
SERVED = {"test_groups.py", "test_queries.py"}
"""Of tests/patterns: `make test` runs these through the SDK and a server too, others in process."""
SAMPLED = {
    "conformance/test_postgres_store.py",
    *("patterns/test_crashes.py", "patterns/test_interleavings.py", "patterns/test_lifecycle.py"),
    *("patterns/test_derived.py", "patterns/test_list_indexes.py", "cli/test_shards_command.py"),
    *("shards/test_fleet.py", "shards/test_maps.py", "shards/test_operations.py"),
    *("shards/test_router.py", "shards/test_row_keys.py", "wire/test_enforce_targets.py"),
    *("store/test_damage.py", "wire/test_backup.py", "wire/test_patterns_ports.py"),
    *("wire/test_sas_combinations.py", "wire/test_streaming.py", "docs/test_patterns_pages.py"),
    *("shards/test_async_fan_out.py", "shards/test_move.py", "shards/test_point_mappings.py"),
    *("shards/test_session.py", "shards/test_writers.py", "wire/test_bad_blob_input.py"),
    *("wire/test_patterns_grants.py", "wire/test_sas_combinations_of_companions.py"),
    "patterns/test_pages.py",
}
"""Files of which `make test` runs every third variant of a test, `make proof` all."""
SAMPLE_STEP = 3
SDK = {
    *("test_blob_sdk.py", "test_python_sdk.py", "test_python_sdk_service.py"),
    *("test_python_sdk_transactions.py", "test_queue_python_sdk.py"),
}
"""Of tests/wire: `make test` runs them with the blocking client, `make proof` with both."""


def is_proof(path: Path, name: str, variant: str, number: int = 0) -> bool:
    """Return whether a test is left to `make proof`.

    `variant` is the text of its parameters, `number` its position among the variants of the test.
    """
    folder, words = path.parent.name, variant.split("-")
    file = f"{folder}/{path.name}"
    if file in FILES or name in TESTS or (file in SAMPLED and number % SAMPLE_STEP):
        return True
    if folder == "shards" and path.name in ON_SQLITE_FIRST and name not in ON_POSTGRESQL_TOO:
        return any(word in variant for word in ("postgresql", "psycopg", "asyncpg"))
    if folder == "wire" and path.name in SDK:
        return "aio" in words
    if folder == "patterns" and path.name not in SERVED:
        return "served" in words or "sdk" in words
    return False
