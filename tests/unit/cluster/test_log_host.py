"""The event log's process without Ray: followers that continue in it, and their reads."""

import pyarrow.parquet as pq
import pytest
from support.log_writing import batch_of, die, host_of, table_of_batches
from support.stepped import begin_steps

from ray_messaging import Steps
from ray_messaging.cluster.handles.remote_log import Seen
from ray_messaging.errors import ConfigError, LogError
from ray_messaging.eventlog.folder import Folder, StepPosition
from ray_messaging.eventlog.folder_records import RuleChange, read_rule_changes
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.rules import BlackList


@pytest.fixture
async def start(exp_id, valkey_config, tmp_path, opener):
    """Return a function that starts a log process; the last one ends with the test."""
    hosts = []

    async def start():
        hosts.append(host_of(valkey_config, tmp_path / "log", exp_id=exp_id, mailbox_messages=400))
        await hosts[-1].start()
        return hosts[-1]

    yield start
    await hosts[-1].close()


def ids(page):
    return page["message_id"].to_pylist()


async def test_a_follower_misses_nothing_when_rows_get_new_numbers(start, opener, valkey_config):
    first = await start()
    sender = await opener(valkey_config)
    await opener(valkey_config, host=[1])
    await opener(valkey_config, host=[2])
    sent = []
    for to_id in (1, 2, 1, 2):  # a successor reads one mailbox after the other
        sent.append((await sender.send_message(sender.get_agent_chat_channel(to_id), {})).message_id)
        await first.ask("end", {})
    page, seen = await first.since(Seen("", -1), {"limit": 2})
    found = ids(page)
    assert len(found) == 2
    await die(first)
    page, seen = await (await start()).since(seen, {"limit": 10})
    assert set(found + ids(page)) == set(sent)
    assert seen.position == 3


async def test_changes_of_the_rules_that_come_late_take_no_later_one_back(start, tmp_path):
    host = await start()
    changes = [RuleChange(1.0, "insert", {"name": "first"}, 4), RuleChange(2.0, "remove", {"name": "first"}, 5)]
    await host.write_rule_changes(changes)
    await host.write_rule_changes(changes[:1])  # Ray does not keep the order of calls
    assert read_rule_changes(Folder(tmp_path / "log")) == changes


async def test_a_continuing_listener_finds_its_place_without_reading_payloads(
    start, opener, exp_id, valkey_config, tmp_path
):
    host = await start()
    sender = await opener(valkey_config, Interceptor(exp_id, [BlackList([(0, None)])]))
    for low in range(0, 600, 100):
        payloads = [{"n": n} for n in range(low, low + 100)]
        await sender.send_columns([0, 1] * 50, [2] * 100, payloads)
    assert await host.count_blocked() == 300
    await host._writer._written()
    assert host.stats()["open_rows"] < 300
    for after in (0, 1, 170, 299):
        page, _ = await host.blocked(after, None, 0)
        assert [row["payload"] for row in page.to_pylist()] == [f'{{"n":{2 * n}}}' for n in range(after, 300)]
    page, _ = await host.blocked(1000, None, 0)  # more than there are
    assert len(page) == 0
    for path in tmp_path.glob("**/events-*.parquet"):
        spoil(path, "payload")
    page, seen = await host.blocked(300, None, 0)
    assert len(page) == 0
    assert seen.position == 599
    with pytest.raises(LogError, match="damaged"):
        await host.blocked(0, None, 0)


def spoil(path, column):
    """Overwrite a column of a file, which readers of the other columns do not notice."""
    facts = pq.read_metadata(path)
    chunks = [
        facts.row_group(group).column(at) for group in range(facts.num_row_groups) for at in range(facts.num_columns)
    ]
    with path.open("r+b") as file:
        for chunk in chunks:
            if chunk.path_in_schema == column:
                file.seek(chunk.dictionary_page_offset or chunk.data_page_offset)
                file.write(bytes(chunk.total_compressed_size))


async def test_a_log_with_steps_does_not_go_on_with_a_server_that_has_none(exp_id, valkey_config, tmp_path, opener):
    await begin_steps(await opener(valkey_config))
    folder = Folder(tmp_path / "log")
    folder.prepare(exp_id)
    of_steps = {"exp_id": exp_id, "epoch": 1, "first_row": 0, "cursors": {}, "steps": StepPosition(7, {})}
    folder.write(1, table_of_batches(batch_of(5)), of_steps)
    host = host_of(valkey_config, folder.where, on_existing="resume", exp_id=exp_id, steps=Steps())
    with pytest.raises(
        ConfigError,
        match=r"steps of '.*' up to 7, but the server of this start has none of them.*data_dir=.*Messaging.fork",
    ):
        await host.start()
    await host.abandon()
    assert [segment.rows for segment in folder.segments()] == [5]
