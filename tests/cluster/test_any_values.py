"""Values of every kind on their whole way: sent, kept in a state, remembered, logged, exported and read again."""

import json

import pyarrow.csv as pacsv
import pyarrow.parquet as papq
import pytest
import ray
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from support.any_values import anything, json_leaves, marked

from ray_messaging import EventLog, Messaging, Steps
from ray_messaging.errors import InvalidPayload

JSON_LIKE = st.recursive(
    json_leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text() | st.text(st.characters()) | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)
COUNT = 400  # of each kind

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("by_value")]


def examples(strategy):
    """Return as many values as Hypothesis makes of a strategy: each start of the cluster's actors takes all of them."""
    made = []

    @given(strategy)
    @settings(max_examples=COUNT, deadline=None, phases=[Phase.generate], database=None)
    def keep(value):
        made.append(value)

    keep()
    return made


async def person(me, inbox):
    """Try to send, to keep and to remember a value, and note what was refused, and what has come."""
    from ray_messaging.model.exact import encode_exactly

    value = me.shared[me.id]
    if me.step == 0:
        me.state["refused"] = {}
        try:
            me.send(me.id, {"value": value})
        except InvalidPayload as error:
            me.state["refused"]["send"] = str(error)
        try:
            encode_exactly(value, "value")  # the state of a whole group fails with one
        except InvalidPayload as error:
            me.state["refused"]["keep"] = str(error)
        else:
            me.state["kept"], me.state["remembered"] = value, await me.remember(same, value)
    else:
        me.state["heard"] = [message.payload for message in inbox]


def same(value):
    return value


def json_form(value):
    """Return a JSON-like value as JSON has it: tuples are lists, whole numbers as keys are texts."""
    if isinstance(value, list | tuple):
        return [*map(json_form, value)]
    if isinstance(value, dict):
        return {str(key): json_form(part) for key, part in value.items()}
    return value


@pytest.mark.filterwarnings("ignore:Generating overly large repr")
def test_a_value_comes_through_equal_or_was_refused_with_its_place(tmp_path, exp_id):
    json_like, rest = examples(JSON_LIKE), examples(anything)
    values = ray.get(ray.put(json_like + rest))  # Ray makes bytes of a bytearray
    with Messaging.start(exp_id, steps=Steps(seed=1), log_dir=tmp_path / "log") as messaging:
        result = messaging.run(person, agents=len(values), groups=2, until=2, shared=values)
    log = EventLog.open(tmp_path / "log")
    rows = log.query().to_pylist()
    logged = {int(row["from_id"]): json.loads(row["payload"]) for row in rows}
    exported = [read_again(log, tmp_path / f"log.{kind}") for kind in ("jsonl", "csv", "parquet")]
    sent = 0
    for agent, value in enumerate(values):
        state = result.states[agent]
        refused = state["refused"]
        if "keep" in refused:
            assert "value" in refused["keep"], refused
        else:
            assert marked(state["kept"]) == marked(value)
            assert marked(state["remembered"]) == marked(value)
        if "send" in refused:
            assert "value" in refused["send"], refused
            assert state["heard"] == []
            continue
        (heard,) = state["heard"]
        sent += 1
        if agent < len(json_like):
            assert marked(heard) == marked({"value": json_form(value)})
        for found in (logged, *exported):
            assert marked(found[agent]) == marked(heard)
    assert len(logged) == sent > len(values) // 4


def read_again(log, path):
    """Export the log, and return the payload of each sender."""
    log.export(path)
    if path.suffix == ".jsonl":
        rows = map(json.loads, path.read_text("utf-8").split("\n")[:-1])
        return {int(row["from_id"]): row["payload"] for row in rows}
    options = pacsv.ParseOptions(newlines_in_values=True)
    table = papq.read_table(path) if path.suffix == ".parquet" else pacsv.read_csv(path, parse_options=options)
    return {int(row["from_id"]): json.loads(row["payload"]) for row in table.to_pylist()}
