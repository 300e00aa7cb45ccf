"""Payloads in typed columns: by every door, through rules, conversations, steps and dead letters."""

import asyncio
import json
import math
import pickle
from contextlib import aclosing

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from support.contracts import WAIT_S, fetch_batch
from support.frames import relayed
from support.interceptors import interceptor_with
from support.rules import Only
from support.stepped import begin_steps
from support.typed_tables import all_typed, unread

from ray_messaging import Rule, columns, rules
from ray_messaging.errors import InvalidColumns, InvalidPayload, PayloadTooLarge

PRICES = np.array([1.5, math.nan, 3.0])
TEXTS = ["buy", "séll", ""]
PLACES = np.arange(6, dtype=np.int32).reshape(3, 2)
OFFERS = columns(price=PRICES, text=TEXTS, at=PLACES, open=[True, False, True])
TO = [11, 12, 11]


def assert_offers(messages):
    assert np.array_equal(messages.column("price"), PRICES, equal_nan=True)
    assert messages.column("text").tolist() == TEXTS
    assert messages.column("at").tolist() == PLACES.tolist()
    assert messages.column("open").dtype == bool
    assert (messages[0].payload["price"], messages[1].payload["text"]) == (1.5, "séll")
    assert [message.payload["at"] for message in messages] == PLACES.tolist()
    assert math.isnan(messages[1].payload["price"])
    assert json.loads(messages.data[1]) == {"price": None, "text": "séll", "at": [2, 3], "open": False}
    assert messages[1].data == messages.data[1]


@pytest.mark.parametrize("kind", ["columns", "arrow", "batch", "pandas", "relayed"])
async def test_columns_arrive_as_they_were_sent(pair, kind):
    west, east = pair
    table = OFFERS.to_arrow()
    frame = pd.DataFrame({"price": PRICES, "text": TEXTS, "open": [True, False, True]})
    kinds = {"arrow": pa.Table.from_batches([table]), "batch": table, "pandas": columns(frame, at=PLACES)}
    if kind == "relayed":  # of another process
        receipts = await west.relay(relayed([1, 2, 3], TO, OFFERS))
    else:
        receipts = await west.send_columns([1, 2, 3], TO, kinds.get(kind, OFFERS))
    assert [*receipts.fates] == ["delivered"] * 3
    messages = await fetch_batch(east, 3)
    assert_offers(messages)
    assert messages.from_ids.tolist() == [1, 2, 3]
    assert all_typed(messages)


async def test_columns_become_a_table_a_frame_rows_of_the_local_log_and_pickled_messages(pair):
    west, east = pair
    await west.send_columns([1, 2, 3], TO, OFFERS)
    assert [row["payload"]["text"] for row in west.get_log_list()] == TEXTS
    messages = await fetch_batch(east, 3)
    table = messages.to_arrow()
    assert table.column_names[:3] == ["message_id", "step", "channel"]
    assert str(table.schema.field("sent_at").type) == "timestamp[us, tz=UTC]"
    assert table.column_names[-4:] == ["payload.price", "payload.text", "payload.at", "payload.open"]
    assert table["payload.text"].to_pylist() == TEXTS
    assert str(table.schema.field("payload.at").type) == "fixed_size_list<item: int32>[2]"
    frame = messages.to_pandas()
    assert frame["payload.text"].tolist() == TEXTS
    assert frame["payload.price"].isna().tolist() == [False, True, False]
    assert frame["to_id"].tolist() == TO
    assert "payload" not in frame
    message = pickle.loads(pickle.dumps(messages[1]))
    assert (message.payload["text"], message.payload["at"]) == ("séll", [2, 3])


async def test_messages_of_several_kinds_share_a_table(pair):
    west, east = pair
    await west.send_columns(1, [11, 12], pd.DataFrame({"n": [1, 2], "x": [0.5, 1.5]}))
    await west.send_columns(1, [11], columns(n=[3], name=["c"]))
    await west.send_columns(1, [11, "nobody"], {"n": 4})
    messages = await fetch_batch(east, 4)
    assert messages.column("n").tolist() == [1, 2, 3, 4]
    frame = messages.to_pandas()
    assert frame["payload"].tolist() == [None, None, None, {"n": 4}]
    assert frame["payload.x"].tolist()[:2] == [0.5, 1.5]
    assert frame["payload.x"].isna().tolist() == [False, False, True, True]
    table = messages.to_arrow()
    assert table["payload.name"].to_pylist() == [None, None, "c", None]
    assert table["payload"].to_pylist() == [None, None, None, '{"n":4}']
    with pytest.raises(InvalidColumns, match="message 2 has no column 'x'") as caught:
        messages.column("x")
    assert (caught.value.column, caught.value.row) == ("x", 2)
    await west.send_columns(1, [11, 11], columns(n=["one", "two"]))
    both = await fetch_batch(east, 2)
    assert both.column("n").tolist() == ["one", "two"]


async def test_bad_columns_are_refused_before_anything_is_sent(pair):
    west, east = pair
    with pytest.raises(InvalidColumns, match="2 from_ids, 3 payloads"):
        await west.send_columns([1, 2], 11, OFFERS)
    with pytest.raises(InvalidColumns, match=r"'price' is an array: use columns\(price=array\)") as caught:
        await west.send_columns(1, TO, {"n": 1, "price": PRICES})
    assert caught.value.column == "price"
    with pytest.raises(InvalidColumns, match="column 'n': row 1 has no value"):
        await west.send_columns(1, [11, 12], pa.table({"n": [1, None]}))
    with pytest.raises(InvalidColumns, match="not ndarray"):
        await west.send_columns(1, TO, PRICES)
    with pytest.raises(InvalidPayload, match="TypedColumns"):
        await west.send(1, 11, OFFERS)
    await west.send_columns(1, 11, columns(n=np.zeros(0)))
    await west.send_columns(1, 11, columns(n=[7]))
    assert (await fetch_batch(east, 1)).payloads == [{"n": 7}]


async def test_a_row_above_the_limit_is_refused(messagers):
    west = await messagers(payload_bytes=100)
    with pytest.raises(PayloadTooLarge, match="row 1") as caught:
        await west.send_columns(1, [11, 12], columns(text=["a", "b" * 200]))
    assert caught.value.size == 204
    await west.send_columns(1, np.arange(50), columns(n=np.arange(50)))


async def test_frames_stay_within_the_limits_of_a_mailbox(messagers):
    west = await messagers()
    east = await messagers(host=[11], frame_rows=100, frame_bytes=2_000)
    numbers, texts = np.arange(1_000), ["é" * (n % 7) for n in range(1_000)]
    await west.send_columns(np.arange(1_000), 11, columns(n=numbers, text=texts))
    messages = await fetch_batch(east, 1_000)
    assert max(part.high - part.low for part in messages.slices) <= 100
    assert messages.column("n").tolist() == numbers.tolist()
    assert messages.column("text").tolist() == texts
    assert messages.from_ids.tolist() == numbers.tolist()


# -- rules ------------------------------------------------------------------------------------------------------------


class Expensive(Rule):
    """A rule on a column, without JSON."""

    needs_payload = True

    def check_batch(self, batch, exp_id):
        self.seen = batch.lines
        return {int(row): rules.block("expensive") for row in np.flatnonzero(batch.column("price") > 2)}


async def test_a_rule_reads_a_column_as_an_array(messagers):
    rule = Expensive()
    west = await messagers(interceptor_with(rules.BlackList([(2, None)]), rule), name="west", host=[1, 2, 3])
    east = await messagers(name="east", host=[11, 12])
    receipts = await west.send_columns([1, 2, 3], TO, OFFERS)
    assert [*receipts.fates] == ["delivered", "blocked", "blocked"]
    assert unread(rule.seen)
    messages = await fetch_batch(east, 1)
    assert messages.column("text").tolist() == ["buy"]
    # Of JSON the same rule reads the values.
    assert [*(await west.send_columns(1, [11, 12], [{"price": 1}, {"price": 3}])).fates] == ["delivered", "blocked"]
    receipt = (await west.send_columns(1, [11], [{"cost": 1}]))[0]
    assert (receipt.fate, receipt.reason) == (
        "blocked", "the rule failed: InvalidColumns: message 0 has no column 'price'"
    )  # fmt: skip


async def test_rules_on_text_see_lines(messagers):
    west = await messagers(interceptor_with(rules.Pattern(regexes=["s.ll"]), rules.MaxLength(60)), name="west")
    await messagers(name="east", host=[11, 12])
    receipts = await west.send_columns([1, 2, 3], TO, columns(text=["buy", "sell", "x" * 100]))
    assert [*receipts.fates] == ["delivered", "blocked", "blocked"]


@pytest.mark.parametrize(
    ("change", "fates"), [({"price": 2}, "ddd"), ({"price": "two"}, "bdd"), ({"more": 1}, "bdd")], ids=str
)
async def test_a_rewrite_fits_the_columns_or_is_a_failure_of_the_rule(messagers, change, fates):
    haggle = Only(
        lambda m: rules.rewrite(m.payload | change) if m.payload["text"] == "buy" else rules.ALLOW, needs_payload=True
    )
    west = await messagers(interceptor_with(haggle), name="west")
    east = await messagers(name="east", host=[11, 12])
    receipts = await west.send_columns([1, 2, 3], TO, OFFERS)
    assert "".join(fate[0] for fate in receipts.fates) == fates
    messages = await fetch_batch(east, fates.count("d"))
    assert all_typed(messages)
    prices = messages.column("price").tolist()
    assert repr(prices) == repr([2.0, math.nan, 3.0] if fates == "ddd" else [math.nan, 3.0])


# -- other doors ------------------------------------------------------------------------------------------------------


async def test_a_foreign_client_gets_json(messagers, store):
    west = await messagers(name="west")
    get = await store.subscribe(west.get_agent_chat_channel(77))
    await west.send_columns(1, [77, 77], columns(n=[1, 2], x=[math.nan, 0.5]))
    assert [(await get())[1], (await get())[1]] == [b'{"n":1,"x":null}', b'{"n":2,"x":0.5}']


async def test_questions_and_answers_are_columns(pair):
    west, east = pair

    async def answer():
        questions = await fetch_batch(east, 3)
        await east.reply_columns(questions, columns(twice=questions.column("n") * 2))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(answer())
        answers = await west.ask_columns([1, 2, 3], TO, columns(n=[4, 5, 6]), timeout=WAIT_S)
        await answers.wait()
    assert answers.to_pandas()["answer"].tolist() == [{"twice": 8}, {"twice": 10}, {"twice": 12}]


async def test_in_a_transaction_columns_travel_as_json(pair):
    west, east = pair
    async with west.transaction() as transaction:
        transaction.send_columns([1, 2, 3], TO, OFFERS)
    messages = await fetch_batch(east, 3)
    assert messages.column("text").tolist() == TEXTS
    assert messages[1].payload["price"] is None


@pytest.mark.parametrize(
    ("senders", "hearers"), [((1, 2, 3), (11, 12)), ((-(2**63), -5, 0), (7, 2**63 - 1))], ids=["near", "far apart"]
)
async def test_in_steps_columns_arrive_in_canonical_order(messagers, senders, hearers):
    (first_id, second_id, third_id), (one, other) = senders, hearers
    await begin_steps(await messagers(), seed=0, groups=2)
    west = await messagers(name="west", host=[third_id, first_id, second_id])
    east = await messagers(name="east", host=[one, other])
    found = []

    async def live(messager):
        async with aclosing(messager.steps(until=3)) as steps:
            async for step in steps:
                found.append((messager.name, step.messages))
                if messager is west:
                    step.send_columns([third_id, first_id, second_id], [one, other, one], OFFERS)
                    if step.number == 1:
                        step.send_columns([third_id, first_id], [other, other], columns(text=["x", "y"]))

    await asyncio.gather(live(west), live(east))
    first, second = [got for name, got in found if name == "east" and len(got)]
    assert first.to_ids.tolist() == [one, one, other]
    assert first.column("text").tolist() == ["", "buy", "séll"]
    assert all_typed(first)
    assert second.from_ids.tolist() == [second_id, third_id, first_id, first_id, third_id]
    assert second.column("text").tolist() == ["", "buy", "séll", "y", "x"]


class Patient(rules.SlowRule):
    """A rule that awaits its verdicts."""

    async def judge(self, message):
        await asyncio.sleep(0)
        price = message.payload["price"]
        return rules.block("expensive") if price > 2 else rules.rewrite(message.payload | {"price": 2.0})


async def test_a_slow_rule_judges_rows_of_several_batches(messagers):
    west = await messagers(interceptor_with(Patient()), name="west")
    east = await messagers(name="east", host=[11, 12])
    found = await asyncio.gather(*(west.send_columns([1, 2], [11, 12], columns(price=[0.5, n])) for n in (1.0, 3.0)))
    assert [[*receipts.fates] for receipts in found] == [["delivered"] * 2, ["delivered", "blocked"]]
    messages = await fetch_batch(east, 3)
    assert messages.column("price").tolist() == [2.0] * 3
    assert all_typed(messages)
