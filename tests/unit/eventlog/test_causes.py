"""`why` and `effects` over any rows, against plain loops over all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.log_queries import end_of, log_of, row, write_folder

from ray_messaging.errors import ConfigError, InvalidQuery, UnknownName

STEPS, FIRST_ADDED, FIRST_OUTSIDE = 5, 2**30, 2**31
AGENTS = st.sampled_from([1, 2, 3, "ann"])
FATES = st.sampled_from(["delivered"] * 4 + ["blocked", "undeliverable", "published"])


def said(step, ordinal, from_id, to_id, *, later=1, **facts):
    """Build the row of a message in a step."""
    who = "" if from_id is None else from_id
    read = step if ordinal >= FIRST_OUTSIDE else step + later
    ids = {"message_id": f"{step}-{ordinal}-{who}", "step": step, "step_read": read, "ordinal": ordinal}
    return row(ordinal % 1000, from_id, to_id, **ids | facts)


@st.composite
def runs(draw):
    """Draw the rows of a run, step by step, some of them answers."""
    rows = []
    for step in range(STEPS):
        asked = list(rows)
        ordinals = dict.fromkeys([1, 2, 3, "ann"], 0)
        for number in range(draw(st.integers(0, 7))):
            from_id, to_id = draw(AGENTS), draw(st.one_of(AGENTS, st.none()))
            first = draw(st.sampled_from([0, 0, 0, 0, FIRST_ADDED, FIRST_OUTSIDE]))
            facts = {"fate": draw(FATES), "later": draw(st.sampled_from([1, 1, 2]))}
            mine = [one for one in asked if one["step_read"] <= step and end_of(one, "to") == from_id]
            if mine and draw(st.booleans()):
                facts["in_reply_to"] = draw(st.sampled_from(mine))["message_id"]
            if first:
                rows.append(said(step, first + number, draw(st.sampled_from([from_id, None])), to_id, **facts))
                continue
            rows.append(said(step, ordinals[from_id], from_id, to_id, **facts))
            ordinals[from_id] += 1
            if draw(st.integers(0, 5)) == 0:  # the recipient is in two mailboxes
                rows.append(rows[-1] | {"mailbox": "other"})
    return rows


def rank(agent):
    return (0,) if agent is None else (2, agent) if isinstance(agent, str) else (1, agent)


def hand(rows, agent, step):
    """Return what an agent read in a step, in canonical order, as {id: row}."""
    found = [
        one for one in rows if one["fate"] == "delivered" and one["step_read"] == step and end_of(one, "to") == agent
    ]
    found.sort(key=lambda one: (one["step"], rank(end_of(one, "from")), one["ordinal"]))
    return {one["message_id"]: one for one in found}


def tree(rows, message_id, depth, most):
    """Return (id, [trees of the causes], how many more there are)."""
    one = next(one for one in rows if one["message_id"] == message_id)
    if not depth:
        return message_id, [], 0
    sent = one["ordinal"] < FIRST_ADDED
    held = [*hand(rows, end_of(one, "from"), one["step"])] if sent else []
    asked = [] if one["in_reply_to"] is None else [one["in_reply_to"]]
    shown = [*asked, *(each for each in held if each not in asked)][:most]
    return message_id, [tree(rows, each, depth - 1, most) for each in shown], len({*held} - {*shown})


def as_tree(found):
    return found.message.message_id, [as_tree(each) for each in found.causes], found.more


def moved(rows, message_id, depth):
    """Return {agent: first step in which a message could have moved it}."""
    own = [one for one in rows if one["message_id"] == message_id and one["fate"] == "delivered"]
    if not own:
        return {}
    first = own[0]["step_read"]
    since = {end_of(one, "to"): first for one in own if end_of(one, "to") is not None}
    for step in range(first + 1, first + depth):
        for one in rows:
            if one["fate"] == "delivered" and one["step_read"] == step and one["ordinal"] < FIRST_ADDED:
                to = end_of(one, "to")
                if since.get(end_of(one, "from"), 99) <= one["step"] and to is not None:
                    since.setdefault(to, step)
    return since


@given(runs(), st.integers(1, 4), st.integers(1, 4), st.sampled_from([1, 3, 100]), st.randoms(use_true_random=False))
def test_any_message_of_any_run(tmp_path_factory, rows, depth, most, group, chance):
    closed, live = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    log = log_of(write_folder(tmp_path_factory.mktemp("log"), [closed], row_group_rows=group), [live])
    ids = sorted({one["message_id"] for one in rows})
    for message_id in chance.sample(ids, min(4, len(ids))):
        assert as_tree(log.why(message_id, depth, most=most)) == tree(rows, message_id, depth, most)
        agents = log.effects(message_id, depth).agents.to_pydict()
        expected = moved(rows, message_id, depth)
        as_text = any(isinstance(agent, str) for agent in expected)
        assert dict(zip(agents["agent"], agents["step"], strict=True)) == {
            str(agent) if as_text else agent: step for agent, step in expected.items()
        }
        assert agents["step"] == sorted(agents["step"])


ROWS = [
    said(0, 0, 1, 2, text="is it true?", expects_answer=True),
    said(0, 0, 3, 2, text="good <morning>\x1b[2J"),
    said(0, 1, 3, 2, fate="blocked", rule="no", reason="never"),
    said(1, FIRST_OUTSIDE, None, 2, text="from the user"),
    said(1, 0, 2, 4, text="it is", in_reply_to="0-0-1", labels=["kind"]),
    said(2, 0, 4, 5),
    said(2, 1, 4, "ann", later=2),
]


@pytest.fixture
def log(tmp_path):
    return log_of(write_folder(tmp_path, [ROWS]))


def test_the_tree_as_text_and_as_a_table(log):
    found = log.why("1-0-2")
    assert str(found).splitlines() == [
        '1-0-2 in step 1: 2 -> 4  {"content":"it is"}  [labels kind]',
        '+- 0-0-1 in step 0: 1 -> 2  {"content":"is it true?"}  (answered by the message above)',
        "|  +- its sender had read no message",
        '+- 0-0-3 in step 0: 3 -> 2  {"content":"good <morning>\\u001b[2J"}',
        "|  +- its sender had read no message",
        '+- 1-2147483648- in step 1: the user -> 2  {"content":"from the user"}',
        "|  +- it came from outside of the steps",
    ]
    assert "good &lt;morning&gt;" in found._repr_html_()
    table = found.to_pandas()
    assert table.message_id.tolist() == ["1-0-2", "0-0-1", "0-0-3", "1-2147483648-"]
    assert table.depth.tolist() == [0, 1, 1, 1]
    assert table.cause_of.tolist()[1:] == ["1-0-2"] * 3
    assert table.answered.tolist() == [False, True, False, False]
    assert str(table.from_id.dtype) == "Int64"
    assert "+- and 2 more" in str(log.why("1-0-2", most=1))
    assert "[blocked; rule no: never]" in str(log.why("0-1-3"))


def test_the_effects_as_text_and_as_tables(log):
    found = log.effects("0-0-1", depth=4)
    assert found.to_pandas().to_dict("list") == {"step": [1, 2, 3, 4], "agent": ["2", "4", "5", "ann"]}
    assert found.counts().to_pydict() == {"step": [1, 2, 3, 4], "agents": [1] * 4, "all": [1, 2, 3, 4]}
    assert str(found).splitlines()[2:4] == ["  step 1: 1 more, 1 in all", "  step 2: 1 more, 2 in all"]
    assert "<td" in found._repr_html_()
    assert log.effects("0-0-1", depth=100).counts().equals(found.counts())  # no step after those of the log
    assert log.effects("0-0-1", depth=2).counts()["step"].to_pylist() == [1, 2]
    assert "no agent reads this message" in str(log.effects("0-1-3"))
    assert len(log.effects("0-1-3").counts()) == 0


def test_an_answer_outside_of_steps_has_its_question_as_its_only_cause(tmp_path):
    rows = [row(0), row(1, expects_answer=True), row(2, 2, 1, in_reply_to="s-1-1")]
    log = log_of(write_folder(tmp_path, [rows]))
    (cause,) = log.why("s-1-2").causes
    assert (cause.message.message_id, cause.answered) == ("s-1-1", True)
    assert "outside of steps" in cause.note
    for ask, others in ((log.why, "by a handler of `serve`"), (log.effects, "an experiment with steps=Steps")):
        with pytest.raises(ConfigError, match=rf"'s-1-0' was sent outside of steps, .*: choose .*{others}"):
            ask("s-1-0")


def test_a_message_that_was_sent_while_another_one_was_handled_is_caused_by_it(tmp_path):
    rows = [row(0), row(1, 2, 3, caused_by="s-1-0"), row(2, 3, 4, caused_by="s-1-1"), row(3, 4, 5)]
    log = log_of(write_folder(tmp_path, [rows]))
    found = log.why("s-1-2").to_pandas()
    assert found.message_id.tolist() == ["s-1-2", "s-1-1", "s-1-0"]
    assert found.cause_of.tolist()[1:] == ["s-1-2", "s-1-1"]
    assert not found.answered.any()
    other = log_of(write_folder(tmp_path / "other", [[row(0, caused_by="t-1-7"), row(1, in_reply_to="t-1-8")]]))
    for message_id, cause in (("s-1-0", "t-1-7"), ("s-1-1", "t-1-8")):  # as of another experiment
        found = other.why(message_id)
        assert (found.causes, found.note) == ((), f"its cause is message {cause}, which this log does not have")
    assert log.sql("select count(*) n from messages where caused_by is not null").to_pydict() == {"n": [2]}


def test_what_cannot_be_asked(log):
    for ask in (log.why, log.effects):
        with pytest.raises(UnknownName, match=r"no message of the log has the id '7-0-1': copy one") as unknown:
            ask("7-0-1")
        assert unknown.value.value == "7-0-1"
        for wrong in (None, "", 3, "\ud800"):
            with pytest.raises(InvalidQuery, match="message_id"):
                ask(wrong)
        for wrong in (0, -1, None, "2", True, 1.5):
            with pytest.raises(InvalidQuery, match="depth"):
                ask("1-0-2", wrong)
    with pytest.raises(InvalidQuery, match="most=0"):
        log.why("1-0-2", most=0)
