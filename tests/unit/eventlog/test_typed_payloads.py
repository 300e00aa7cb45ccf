"""Payloads in typed columns in the log: their types, several sets of columns in one file, rows in their order."""

import csv
import json
from contextlib import aclosing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from support.log_writing import Crash, batch_of, write_batches
from support.step_society import LoggedGroups
from support.stepped import begin_steps
from support.typed_tables import tables, values_of

from ray_messaging.errors import MessagingError
from ray_messaging.eventlog.checkpoint_files import write_checkpoint
from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.folder_records import FORMAT, RunRecord, write_run
from ray_messaging.eventlog.forking import copy_run
from ray_messaging.eventlog.reading.questions import answer
from ray_messaging.eventlog.reading.scan import View
from ray_messaging.model.columns import IdColumn, PayloadColumn
from ray_messaging.model.extension import Extension
from ray_messaging.model.typed.input import columns
from ray_messaging.transports.checkpoints import CopiedKey

PAIRS = ["price", "n", "text", "ok", "at"]


def offers(rows, first=0):
    """Return payloads of five types."""
    number = np.arange(first, first + rows)
    return columns(
        price=number / 4,
        n=number.astype(np.int32),
        text=[f"offer {n} é" for n in number],
        ok=number % 2 == 0,
        at=np.stack([number, -number], axis=1).astype(np.float32),
    )


class Traffic:
    """Messages of one mailbox whose payloads have several sets of columns; `sent` are the payloads, in their order."""

    def __init__(self, society):
        self.society = society
        self.sent = []
        self.topics = []

    async def send(self, topic, payloads):
        """Send typed columns, or a list of plain payloads."""
        plain = isinstance(payloads, list)
        self.sent += payloads if plain else payloads.payloads()
        self.topics += [topic] * len(payloads)
        lines = PayloadColumn.encode(payloads, 2**30) if plain else payloads
        await self.society.send("a", len(payloads), topics=(topic,), lines=lines)

    async def mixed(self, rounds):
        for n in range(rounds):
            await self.send("offers", offers(3, n))
            await self.send("agent-chat", [{"hello": n}])
            await self.send("bids", columns(price=[f"{n} francs", "none"]))


@pytest.fixture
def traffic(society):
    return Traffic(society)


@pytest.fixture
def logged(writers, tmp_path):
    """Return a function that has a running writer log what something sends, and returns the log."""

    async def logged(sending, **settings):
        writer = await writers(**settings)
        await sending
        await writer.close()
        return EventLog.open(tmp_path / "log")

    return logged


def payloads_of(table):
    return [json.loads(text) for text in table["payload"].to_pylist()]


# -- one set of columns ---------------------------------------------------------------------------------------------


async def test_columns_are_stored_with_their_types_and_without_json(traffic, logged, tmp_path):
    log = await logged(traffic.send("offers", offers(100)))
    (file,) = (tmp_path / "log").glob("*.parquet")
    table = pq.read_table(file)
    assert "payload" not in table.column_names
    kinds = {name: table.schema.field(f"payload.{name}").type for name in PAIRS}
    assert kinds == {
        "price": pa.float64(),
        "n": pa.int32(),
        "text": pa.large_string(),
        "ok": pa.bool_(),
        "at": pa.large_list(pa.float32()),
    }
    assert "rule" not in table.column_names  # no row has one
    assert len(log.query(rule="none", in_reply_to="s-1-1")) == 0
    assert len(log.query(rule=None, step=None)) == 100
    found = log.query()
    assert found["payload"].null_count == 100
    assert found["payload.price"].to_pylist() == [payload["price"] for payload in traffic.sent]
    assert found["payload.at"].to_pylist() == [payload["at"] for payload in traffic.sent]
    frame = found.to_pandas()
    assert frame["payload.price"].dtype == np.float64
    assert frame["payload.n"].dtype == np.int32


async def test_texts_are_what_the_recipient_reads(traffic, logged):
    log = await logged(traffic.send("offers", offers(4)))
    assert payloads_of(log.query(text=True)) == traffic.sent
    assert "payload.price" not in log.query(text=True).column_names
    assert [row.payload for row in log.tail(after=-1)] == traffic.sent
    assert [row.payload for row in log.tail(after=-1, contains="offer 2 é")] == traffic.sent[2:3]
    assert payloads_of(log.conversation(0, 0, text=True)) == traffic.sent[:1]
    one = log.query()["message_id"][2].as_py()
    assert payloads_of(log.thread(one, text=True)) == traffic.sent[2:3]
    assert log.thread(one)["payload.price"].to_pylist() == [traffic.sent[2]["price"]]


async def test_running_writers_answer_as_their_files_do(traffic, writers, tmp_path):
    writer = await writers()
    await traffic.mixed(3)
    await writer.caught_up()
    segments, live, _ = writer.snapshot()
    running = answer(View(writer.folder, segments, live), "query", {"text": True})
    assert payloads_of(running) == traffic.sent
    typed = answer(View(writer.folder, segments, live), "query", {})
    assert not len(answer(View(writer.folder, segments, live), "query", {"text": True, "to_id": 10**6}))
    await writer.close()
    assert EventLog.open(tmp_path / "log").query(text=True).equals(running)
    assert EventLog.open(tmp_path / "log").query().equals(typed)


# -- channels --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to_ids", [[5, 7, -3, 5], [5, "mayor", 7, "mayor"]], ids=["numbers", "names"])
async def test_channels_of_agents_are_composed_by_readers(traffic, writers, tmp_path, to_ids):
    writer = await writers()
    topics = {"topics": ("offers", "bids"), "topic": np.array([0, 1, 1, 0], np.uint16)}
    await traffic.society.send("a", 4, lines=offers(4), to_ids=IdColumn.of(to_ids), **topics)
    await writer.caught_up()
    segments, live, _ = writer.snapshot()
    view = View(writer.folder, segments, live)
    head = f"exps:{traffic.society.exp_id}:agents:"
    channels = [f"{head}{to}:{topic}" for to, topic in zip(to_ids, ["offers", "bids", "bids", "offers"], strict=True)]
    running = answer(view, "query", {})
    await writer.close()
    (file,) = (tmp_path / "log").glob("*.parquet")
    assert "channel" not in pq.read_schema(file).names
    assert pq.read_metadata(file).metadata[b"channel_head"] == head.encode()
    log = EventLog.open(tmp_path / "log")
    assert running["channel"].to_pylist() == log.query()["channel"].to_pylist() == channels
    assert log.query(channel=channels[1:3])["to_id"].to_pylist() == log.query()["to_id"].to_pylist()[1:3]
    assert log.query(channel=f"{head}5:none").num_rows == 0
    found = answer(view, "query", {"channel": channels[3], "fate": "delivered"})["channel"].to_pylist()
    assert found == [channel for channel in channels if channel == channels[3]]
    assert dict(zip(*log.count(by="channel").select(["channel", "count"]).to_pydict().values(), strict=True)) == {
        channel: channels.count(channel) for channel in channels
    }


async def test_plain_channels_are_stored(traffic, writers, tmp_path):
    writer = await writers()
    await traffic.society.send("a", 1, lines=offers(1), topics=(":news",), to_ids=IdColumn.of([None]))
    await traffic.send("offers", offers(1))
    await traffic.send("agent-chat", [{"hello": 1}])
    await writer.close()
    own = f"exps:{traffic.society.exp_id}:agents:0"
    assert EventLog.open(tmp_path / "log").query()["channel"].to_pylist() == [
        "news",
        f"{own}:offers",
        f"{own}:agent-chat",
    ]


# -- several sets of columns ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("facts", [{}, {"segment_rows": 7}, {"segment_age_s": 0.0}])
async def test_rows_keep_their_order_whatever_their_columns(traffic, writers, tmp_path, facts):
    writer = await writers(**facts)
    for _ in range(4):
        await traffic.mixed(2)
        await writer.caught_up()
    await writer.close()
    log = EventLog.open(tmp_path / "log")
    found = log.query(text=True)
    assert payloads_of(found) == traffic.sent
    assert found["subtopic"].to_pylist() == traffic.topics
    assert found["position"].to_pylist() == [*range(len(traffic.sent))]
    assert found["message_id"].to_pylist() == traffic.society.written
    assert log.end == len(traffic.sent) - 1
    for after in (0, 3, 5, 20):
        assert payloads_of(log.query(text=True, after=after, limit=4)) == traffic.sent[after + 1 : after + 5]
    assert [row.payload for row in log.tail(after=4)] == traffic.sent[5:]
    assert [payload for page in log.pages(rows=3, text=True) for payload in payloads_of(page)] == traffic.sent
    assert log.count("subtopic")["count"].to_pylist() == [24, 16, 8]
    log.balance()


async def test_a_name_has_another_type_under_another_subtopic(traffic, logged, tmp_path):
    log = await logged(traffic.mixed(3))
    (file,) = (tmp_path / "log").glob("*.parquet")
    frame = pd.read_parquet(file)
    assert frame["payload.price"].dtype == np.float64
    assert frame["payload.price"].tolist()[:3] == [0.0, 0.25, 0.5]
    assert frame["payload[string].price"].tolist()[4:6] == ["0 francs", "none"]
    assert frame["payload.n"].dtype == pd.Int32Dtype()
    rows = {row: frame.loc[row].dropna().filter(like="payload") for row in (0, 3, 4)}
    offers = "payload_columns payload.price payload.n payload.text payload.ok payload.at"
    assert {row: " ".join(found.index) for row, found in rows.items()} == {
        0: offers,
        3: "payload",
        4: "payload_columns payload[string].price",
    }
    assert json.loads(frame["payload_columns"][4]) == {"price": "string"}
    assert json.loads(frame["payload_columns"][0])["at"] == "float32 vectors of 2"
    assert log.query(subtopic="offers")["payload.price"].type == pa.float64()
    assert log.query(subtopic="bids")["payload.price"].type == pa.large_string()
    both = log.query()
    assert both["payload.price"].type == pa.large_string()
    assert both["payload.price"].to_pylist()[:6] == ["0", "0.25", "0.5", None, "0 francs", "none"]
    assert both["payload"].null_count == len(both) - 3
    frame = log.query(subtopic=["offers", "agent-chat"]).to_pandas()
    assert (frame["payload.price"].dtype, frame["payload.price"].isna().sum()) == (np.float64, 3)


async def test_texts_are_searched_up_to_a_limit_and_behind_a_position(traffic, logged):
    log = await logged(traffic.mixed(6), segment_rows=12)
    found = [place for place, payload in enumerate(traffic.sent) if "none" in json.dumps(payload)]
    assert len(found) == 6
    assert log.count(contains="none")["count"].to_pylist() == [6]
    for limit in range(8):
        for after in (-1, found[1], found[4]):
            positions = log.query(contains="none", limit=limit, after=after)["position"].to_pylist()
            assert positions == [place for place in found if place > after][:limit]


async def test_very_many_sets_of_columns_make_several_segments(traffic, writers, tmp_path, monkeypatch):
    for module in ("entries", "open_segment"):
        monkeypatch.setattr(f"ray_messaging.eventlog.writing.{module}.CELLS", 100)
    writer = await writers()
    for n in range(30):
        await traffic.send("offers", columns({f"x{n}": [n]}))
        await writer.caught_up()
    await writer.close()
    assert [segment.rows for segment in Folder(tmp_path / "log").segments()] == [10, 10, 10]
    assert payloads_of(EventLog.open(tmp_path / "log").query(text=True)) == traffic.sent


async def test_many_columns_after_many_rows_begin_a_segment(traffic, writers, tmp_path, monkeypatch):
    for module in ("entries", "open_segment"):
        monkeypatch.setattr(f"ray_messaging.eventlog.writing.{module}.CELLS", 100)
    writer = await writers()
    for payloads in ([{"n": n} for n in range(40)], columns(**{f"x{n}": [n] for n in range(20)})):
        await traffic.send("offers", payloads)
        await writer.caught_up()
    await writer.close()
    assert [segment.rows for segment in Folder(tmp_path / "log").segments()] == [40, 1]
    assert payloads_of(EventLog.open(tmp_path / "log").query(text=True)) == traffic.sent


async def test_many_columns_of_a_step_after_many_rows_begin_a_segment(valkey_config, exp_id, tmp_path, monkeypatch):
    for module in ("entries", "open_segment"):
        monkeypatch.setattr(f"ray_messaging.eventlog.writing.{module}.CELLS", 100)
    async with LoggedGroups(valkey_config, exp_id, tmp_path / "log") as society:
        await begin_steps(society, groups=1)
        writer = await society.writer()
        [group] = await society.groups(1)
        async with aclosing(group.steps(until=2)) as steps:
            async for step in steps:
                if step.number == 0:
                    step.send_columns([0] * 40, [1] * 40, [{"n": n} for n in range(40)])
                else:
                    step.send_columns([0], [1], columns(**{f"x{n}": [n] for n in range(20)}))
        await writer.close()
    assert [segment.rows for segment in Folder(tmp_path / "log").segments()] == [40, 1]


def test_a_large_vector_takes_no_room_in_the_rows_without_one(tmp_path):
    weights = np.arange(2**18, dtype=np.float32).reshape(1, -1)  # in each row it would take 20 GB
    log = write_batches(tmp_path, batch_of(20_000), batch_of(1, first=20_000, lines=columns(weights=weights)))
    found = log.query()
    assert found.nbytes < 32 * 2**20
    assert found["payload.weights"].null_count == 20_000
    assert np.array_equal(found["payload.weights"][-1].values.to_numpy(), weights[0])


# -- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_age", [False, True])
@pytest.mark.parametrize("after", [0, pytest.param(1, marks=pytest.mark.long)])
async def test_a_crash_neither_doubles_nor_drops_a_row(traffic, writers, tmp_path, by_age, after):
    crash = Crash("staged", after)  # the others: test_writer.py
    facts = {"segment_age_s": 0.0} if by_age else {"segment_rows": 8}
    writer = await writers(crash=crash, **facts)
    while not crash.over:
        await traffic.mixed(1)
        with suppress(MessagingError):
            await writer.caught_up()
        await crash.near()
    writer = await writers(segment_rows=8)
    await traffic.mixed(1)
    await writer.close()
    log = EventLog.open(tmp_path / "log")
    assert payloads_of(log.query(text=True)) == traffic.sent
    assert log.query()["message_id"].to_pylist() == traffic.society.written


# -- forks ------------------------------------------------------------------------------------------------------------


def test_a_fork_has_what_was_sent_outside_of_steps_before_them_and_the_channels_of_its_own_experiment(tmp_path):
    parent, fork = Folder(tmp_path / "log"), Folder(tmp_path / "fork")
    parent.prepare("exp")
    of_steps = [{"step": step, "extension": Extension(ordinal=np.zeros(2, np.int64), deliver=step)} for step in (1, 2)]
    sent = [{"text": "before"}], offers(2), columns(ok=[True, False]), [{"text": "later"}]
    facts = [{}, *of_steps, {}]
    lines = [PayloadColumn.encode(each, 2**30) if isinstance(each, list) else each for each in sent]
    made = zip(lines, facts, strict=True)
    batches = [batch_of(each.count, first=10 * n, lines=each, **own) for n, (each, own) in enumerate(made)]
    log = write_batches(parent.where, *batches)
    write_run(parent, RunRecord(FORMAT, "exp"))
    write_checkpoint(parent, 1, [CopiedKey("key", "hash", [(b"name", b"value")])])
    copy_run(parent, fork, "fork", 1)
    found, kept = EventLog.open(fork.where).query(text=True), log.query(text=True, limit=3)
    assert payloads_of(found) == payloads_of(kept) == [*sent[0], *sent[1].payloads()]
    channels = [channel.replace("exps:exp:", "exps:fork:") for channel in kept["channel"].to_pylist()]
    assert found["channel"].to_pylist() == channels
    assert found["position"].to_pylist() == [0, 1, 2]


# -- exports ----------------------------------------------------------------------------------------------------------


async def test_exports_have_all_columns_on_every_page(traffic, logged, tmp_path, monkeypatch):
    async def send():
        await traffic.mixed(4)
        await traffic.send("places", columns(at=np.ones((2, 2), np.float32)))

    log = await logged(send(), segment_rows=7)
    monkeypatch.setattr("ray_messaging.eventlog.reading.paging.pages.__defaults__", (3,))
    rows = len(traffic.sent)
    assert log.export(tmp_path / "all.parquet") == rows
    table = pq.read_table(tmp_path / "all.parquet")
    assert table["payload.n"].type == pa.int32()
    assert table["payload.price"].to_pylist()[:5] == ["0", "0.25", "0.5", None, "0 francs"]
    assert log.export(tmp_path / "offers.parquet", subtopic="offers") == 12
    assert pq.read_table(tmp_path / "offers.parquet")["payload.at"].to_pylist()[1] == [1.0, -1.0]
    assert log.export(tmp_path / "all.jsonl") == rows
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert [line["payload"] for line in lines] == traffic.sent
    assert not any("." in name for line in lines for name in line)
    assert log.export(tmp_path / "all.csv") == rows
    with (tmp_path / "all.csv").open(newline="") as file:
        found = [*csv.DictReader(file)]
    assert found[1]["payload.at"] == "[1.0, -1.0]"
    assert found[0]["payload.text"] == "offer 0 é"
    assert found[3]["payload"] == '{"hello":0}'


# -- rows of frames ---------------------------------------------------------------------------------------------------


NAMES = some.permutations(["a", "b"]).flatmap(lambda names: some.sampled_from([names, names[:1], None]))


@some.composite
def payloads(draw):
    """Return some payloads, typed ones often with the names of others, in another order or of other types; or JSON."""
    rows = draw(some.integers(1, 4))
    if draw(some.integers(0, 3)):
        return draw(tables(rows, names=draw(NAMES)))
    return PayloadColumn.encode([{"a": draw(some.integers(0, 9))} for _ in range(rows)], 2**30)


@settings(deadline=None, max_examples=40)
@given(some.lists(payloads(), min_size=1, max_size=6), some.integers(0, 2))
def test_any_payloads_are_stored_in_one_file_and_read_as_they_were(made, again):
    made = made + made[:again]  # so that some have the same columns
    batches = [batch_of(table.count, first=10 * n, lines=table) for n, table in enumerate(made)]
    with TemporaryDirectory() as where:
        log = write_batches(where, *batches)
        (file,) = Path(where).glob("*.parquet")
        ids = [batch.message_id(row) for batch in batches for row in range(len(batch))]
        assert pd.read_parquet(file)["message_id"].tolist() == ids
        assert log.query()["message_id"].to_pylist() == ids
        assert log.query(text=True)["payload"].to_pylist() == [line.decode() for table in made for line in table.list]
        low = -1
        for table in made:
            found = log.query(after=low, limit=table.count)
            low += table.count
            if isinstance(table, PayloadColumn):
                assert [text.encode() for text in found["payload"].to_pylist()] == table.list
                assert not any(name.startswith("payload.") for name in found.column_names)
            else:
                stored = {name: found[f"payload.{name}"] for name in table.columns}
                assert values_of(columns(stored)) == values_of(table)
