"""A pytest plugin: the long tests that CI leaves out, since others ask the same mechanism more cheaply.

They are more kills, larger data, and further layouts. `pytest -m soak` runs them, `pytest -m long` all long tests.
"""

import pytest

# By file: tests, or single cases of a test.
SOAK = {
    "browser/test_tutorial_in_browser.py": ["test_the_inspector_is_open_beside_the_demo"],
    "browser/test_running_experiment.py": ["test_the_overview_follows_the_run"],
    "cluster/test_changes_lost_by_the_server.py": [
        "test_a_ban_lost_by_the_server_holds_after_the_interceptors_death[redis-server]",
        "test_a_rule_lost_by_the_server_holds_after_the_interceptors_death[redis-server]",
        "test_an_epoch_lost_by_the_server_is_taken_again[redis-server]",
        "test_a_rule_survives_the_death_of_server_and_interceptor[redis-server]",
    ],
    "cluster/test_examples.py": ["test_ray_data_reads_a_log_of_several_files"],
    "cluster/test_failed_restarts.py": [
        "test_an_interceptor_killed_while_the_memory_is_full_returns_later",
        "test_a_group_killed_while_the_memory_is_full_returns_later",
    ],
    "cluster/test_failover_on_ray.py": [
        "test_messages_arrive_once_and_in_order_although_the_primary_is_lost_twice[two replicas]",
        "test_messages_arrive_once_and_in_order_although_the_primary_is_lost_twice[a cluster]",
        "test_actors_that_die_with_the_primary_come_back_over_the_new_one[one replica]",
        "test_actors_that_die_with_the_primary_come_back_over_the_new_one[two replicas]",
        "test_a_run_over_a_lost_primary_gives_the_digests_of_an_undisturbed_one[one replica]",
        "test_a_run_over_a_lost_primary_gives_the_digests_of_an_undisturbed_one[two replicas]",
        "test_a_run_over_a_lost_primary_gives_the_digests_of_an_undisturbed_one[bodies all over it]",
    ],
    "cluster/test_flushed_log.py": [
        "test_queried_rows_are_in_a_file_and_missing_rows_are_reported[redis-server]",
        "test_a_shutdown_after_a_flush_writes_the_read_rows_and_reports_the_loss[redis-server]",
        "test_a_log_killed_after_a_flush_reports_its_unwritten_rows_as_missing[redis-server]",
    ],
    "cluster/test_life.py": [
        "test_a_driver_that_ends_leaves_nothing[returns]",
        "test_an_interrupted_driver_leaves_nothing[in a with block]",
    ],
    "cluster/test_log_faults.py": [
        "test_a_cleared_log_list_stays_empty_when_the_process_dies",
    ],
    "cluster/test_moves_in_steps_on_ray.py": [
        "test_moves_and_kills_change_nothing_in_a_run[one server]",
        "test_agents_move_themselves[one server]",
    ],
    "cluster/test_replay.py": [
        "test_the_pace_of_the_trace_is_kept",
        "test_a_trace_may_have_fewer_agents_than_groups",
        "test_an_own_server_is_left_unchanged",
        "test_an_unbalanced_account_exits_with_1",
    ],
    "cluster/test_run_ends.py": [
        "test_of_a_model_that_raises_ray_says_nothing_of_its_own",
        "test_a_run_that_is_killed_resumes[with its whole machine]",
        "test_a_run_that_is_killed_resumes[and its log is finished]",
    ],
    "cluster/test_bodies_on_ray.py": [
        "test_a_node_that_is_lost_with_its_bodies_is_named",
        "test_a_run_goes_on_with_the_data_that_its_servers_have_kept[data_dir]",
        "test_a_run_goes_on_with_the_data_that_its_servers_have_kept[beside the log]",
    ],
    "cluster/test_step_rules_on_ray.py": ["test_a_change_applies_to_whole_steps[False]"],
    "cluster/test_two_clusters.py": [
        "test_messagers_from_before_a_flush_cannot_bypass_the_new_rules[redis-server-all--60]",
        "test_messagers_from_before_a_flush_cannot_bypass_the_new_rules[redis-server-the experiment-0]",
        "test_messagers_from_before_a_flush_cannot_bypass_the_new_rules[valkey-the interceptor--60]",
        "test_a_second_cluster_is_refused_and_a_reset_ends_the_first[valkey]",
    ],
    "contracts/test_cluster_resharding.py": [
        f"test_each_message_comes_once_and_in_order_also_through_transactions[{way}-no replica]"
        for way in ("key by key", "in one step", "both")
    ],
    "contracts/test_one_digest.py": [
        "test_agents_move_while_the_server_is_killed[processes go on-all]",
        "test_agents_move_while_the_server_is_killed[processes die-senders]",
        "test_10_000_of_100_000_agents_move_while_the_server_is_killed",
    ],
    "contracts/test_step_bodies.py": [
        "test_servers_are_killed_at_random[any server, agents move]",
        "test_servers_are_killed_at_random[any server, and processes, agents move]",
    ],
    "faults/test_exactly_once.py": [
        "test_a_hundred_kills_at_random_points[valkey]",
        "test_a_hundred_kills_at_random_points[redis-server]",
    ],
    "faults/test_model.py": [f"test_the_books_agree_in_the_long_run[{seed}]" for seed in (3, 4, 5)],
    "faults/test_one_digest_on_ray.py": [
        "test_a_rumour_on_ray[group actor killed at random]",
        "test_a_rumour_with_bodies_on_three_servers[the primary]",
        "test_a_rumour_with_bodies_on_three_servers[all of them]",
    ],
    "faults/test_ray_faults.py": [
        f"test_the_promise_holds[{case}]"
        for case in (
            "embedded server: kill -9, 3 times",
            "embedded server: SIGSTOP for 2 s",
            "embedded server: disk full for 3 s",
            "embedded server: disk full, and kill -9 meanwhile",
            "group actor killed at each crash point of a fetch",
            "group actor killed while it takes over",
            "group actor restarted by Ray again and again",
            "group actor stopped in a send, replaced, goes on",
            "group actor stopped in a fetch, replaced, goes on",
            "interceptor stopped in a batch, replaced, goes on",
            "serving actor killed 10 times, 1,000 handlers",
        )
    ],
    "faults/test_server_faults.py": [
        f"test_the_promise_of_a_server_fault_holds[{case}]"
        for case in (
            "server killed 20 times, AOF everysec",
            "Debian's redis-server killed 20 times",
            "server stands still for 30 s",
            "event log while all of them die 30 times",
            "10,000 of 100,000 agents move while receivers and server are killed",
            "replies cut, 30%, for longer",
            "replies cut, 30%, one call per message",
            "half-open link, 3 times",
            "slow link, cut 20 times",
            "a receiver that never fetches, 256 MiB, 2 senders",
            "foreign flood of 64 KiB each",
            "sender, receiver, server killed, Sentinel",
            "a cluster's primary lost 3 times, wait_replicas=1",
        )
    ],
}


@pytest.hookimpl(tryfirst=True)  # before pytest looks at -m
def pytest_collection_modifyitems(config, items):
    """Mark them; raise UsageError for one that a file has not."""
    here, left = config.rootpath / "tests", {file: set(names) for file, names in SOAK.items()}
    collected = {str(item.path.relative_to(here)) for item in items}
    for item in items:
        names = left.get(str(item.path.relative_to(here)), set())
        if item.name in names:
            item.add_marker(pytest.mark.soak)
            names.remove(item.name)
    whole = not config.getoption("lf", default=False) and not any("::" in given for given in config.args)
    strange = {file: names for file, names in left.items() if names and file in collected}
    if whole and strange:
        raise pytest.UsageError(f"tests/support/soak.py names tests that are not there: {strange}")
