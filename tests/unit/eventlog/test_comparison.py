"""`compare` and `diff` of logs that begin alike, against plain loops over their rows."""

from collections import defaultdict

import pytest
from support.log_queries import T0, row, write_folder

from ray_messaging import EventLog, compare
from ray_messaging.errors import ConfigError
from ray_messaging.eventlog.reading import step_digests

STEPS, AGENTS = 3, 4


def rows(changed=None, missing=None):
    """Return messages in canonical order, some in two mailboxes, some blocked, and one from outside in each step."""
    found = []
    for step in range(STEPS):
        for agent in range(AGENTS):
            number = step * AGENTS + agent
            ids = {"message_id": f"{step}-0-{agent}", "step": step, "step_read": step + 1, "ordinal": 0}
            facts = {"sent_at": T0 + step, "text": "other" if number == changed else "same"}
            facts |= {"fate": "blocked", "rule": "no"} if agent == 1 else {}
            for _ in range(0 if number == missing else 1 + (agent == 2)):
                found.append(row(len(found), agent, agent, **ids, **facts))
        ids = {"message_id": f"u{step}", "step": step, "step_read": step + 1, "ordinal": step_digests.FIRST_OUTSIDE}
        found.append(row(len(found), None, 0, sent_at=T0 + step, **ids))
    return found


@pytest.mark.parametrize("part", [1, 3, 4096])
@pytest.mark.parametrize("kind", ["changed", "missing"])
def test_what_two_logs_have_in_common_is_counted_and_the_rest_compared(tmp_path, monkeypatch, part, kind):
    monkeypatch.setattr(step_digests, "_PART", part)
    write_folder(tmp_path / "parent", [rows()])
    for number in [None, 0, 5, 6, STEPS * AGENTS - 1]:
        folder = tmp_path / f"{kind}-{number}"
        write_folder(folder, [rows(**{kind: number})])
        found = compare(folder, tmp_path / "parent")
        expected = defaultdict(lambda: [AGENTS, AGENTS, 1, 1, 0, 0])
        if number is not None:
            step, agent = divmod(number, AGENTS)
            gone = kind == "missing"
            expected[step] = [AGENTS - gone, AGENTS, 1 - (gone and agent == 1), 1, 1, 1]
            assert (found.first.step, found.first.message_id) == (step, f"{step}-0-{agent}")
            assert (found.first.mine is None) == gone
            assert found.first == EventLog.open(folder).diff(EventLog.open(tmp_path / "parent"))
        else:
            assert found.first is None
        table = found.to_pandas()
        assert {step: table.loc[step].tolist() for step in range(STEPS)} == {s: expected[s] for s in range(STEPS)}


def test_a_broadcast_to_another_audience_is_a_difference(tmp_path):
    for name in ("friends", "enemies"):
        facts = {"audience": name, "audience_version": 1, "pairs": 2, "hearing_agents": "d", "subtopic": "agent-chat"}
        ids = {"message_id": "0-0-1", "step": 0, "step_read": 1, "ordinal": 0, "sent_at": T0}
        channel = f"exps:test:audiences:{name}:agent-chat"
        write_folder(tmp_path / name, [[row(0, 1, None, channel=channel, **ids) | facts]])
    found = compare(tmp_path / "friends", tmp_path / "enemies").first
    assert (found.step, found.message_id) == (0, "0-0-1")


def told(*messages):
    """Return what agent 1 says in step 0, each given as recipient, text, and what it answers."""
    found = []
    for ordinal, (to_id, text, *question) in enumerate(messages):
        ids = {"message_id": f"0-{ordinal}-1", "step": 0, "step_read": 1, "ordinal": ordinal, "sent_at": T0}
        found.append(row(0, 1, to_id, text=text, **ids) | {"in_reply_to": question[0] if question else None})
    return sorted(found, key=lambda each: (-1 if each["to_id"] is None else each["to_id"], each["ordinal"]))


@pytest.mark.parametrize(
    ("others", "differ"),
    [
        ([(2, "a"), (3, "b"), (2, "c", "0-8-2"), (2, "d")], 1),  # the answer to the user moves the ordinals of all
        ([(None, "yes", "0-2147483650-None"), (2, "a"), (3, "b"), (2, "c", "0-9-2"), (2, "d")], 0),
        ([(None, "yes", "0-2147483648-None"), (3, "b"), (2, "a"), (2, "c", "0-8-2"), (2, "d")], 2),
        ([(None, "yes", "0-2147483648-None"), (2, "a"), (3, "b"), (2, "c", "0-8-2"), (3, "d")], 2),
        ([(None, "yes", "0-2147483648-None"), (2, "a"), (3, "b"), (2, "c", "0-8-4"), (2, "d")], 1),
        ([(None, "yes", "0-2147483648-None"), (2, "a"), (2, "c", "0-8-2"), (2, "d")], 1),
    ],
    ids=["no answer", "other ids", "other order", "other recipient", "other asker", "one less"],
)
def test_what_was_said_to_whom_in_which_order_is_compared_and_no_ids(tmp_path, others, differ):
    user = (None, "yes", "0-2147483648-None")
    write_folder(tmp_path / "one", [told(user, (2, "a"), (3, "b"), (2, "c", "0-8-2"), (2, "d"))])
    write_folder(tmp_path / "other", [told(*others)])
    found = compare(tmp_path / "one", tmp_path / "other")
    assert found.table["differ"].to_pylist() == [differ]
    assert (found.first is None) == (differ == 0)


def test_two_runs_without_steps_are_not_compared(tmp_path):
    """Both were said to have sent the same messages, whatever they had sent."""
    for name, count in (("one", 1), ("other", 2)):
        write_folder(tmp_path / name, [[row(number, step=None) for number in range(count)]])
    with pytest.raises(ConfigError, match=r"only runs with steps=Steps\(\) can be compared"):
        compare(tmp_path / "one", tmp_path / "other")
