"""Queries return the rows that a plain loop finds, from segments, row groups and memory."""

from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.log_queries import T0, end_of, groups_read, log_of, row, write_folder

from ray_messaging.errors import InvalidQuery
from ray_messaging.model.fates import FATES

ENDS = st.sampled_from([None, -1, 0, 1, 7, "ann", "bob", 2**62])
RULES = ["black_list", "pattern", None]


@st.composite
def logs(draw):
    """Draw up to 30 rows, and the ends of the segments."""
    rows = []
    for number in range(draw(st.integers(0, 30))):
        fate = draw(st.sampled_from(FATES))
        facts = {
            "step": draw(st.sampled_from([None, 0, 1, 5, 9])),
            "step_read": draw(st.sampled_from([None, 1, 2, 9])),
            "subtopic": draw(st.sampled_from(["agent-chat", "user-chat"])),
            "fate": fate,
            "rule": draw(st.sampled_from(RULES)) if fate == "blocked" else None,
            "sent_at": T0 + draw(st.integers(0, 20)) / 4,
            "text": draw(st.sampled_from(["Hello", "hello", "a'\"%_b", "äöü", ""])),
        }
        rows.append(row(number, draw(ENDS), draw(ENDS), **facts))
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=3)))
    bounds = [0, *cuts, len(rows)]
    return rows, [rows[low:high] for low, high in pairwise(bounds)]


def one_or_several(values):
    return st.one_of(values, st.lists(values, max_size=3))


STEPS = st.one_of(
    one_or_several(st.sampled_from([None, 0, 1, 5, 8])),
    st.sampled_from([range(1, 6), range(5), slice(1, None), slice(None, 5), range(0)]),
)
QUESTIONS = st.fixed_dictionaries(
    {},
    optional={
        "from_id": one_or_several(ENDS),
        "to_id": one_or_several(ENDS),
        "agent": one_or_several(ENDS),
        "channel": one_or_several(st.sampled_from(["exps:test:agents:7:agent-chat", "exps:test:user-payback", "no"])),
        "subtopic": one_or_several(st.sampled_from(["agent-chat", "user-chat", None])),
        "fate": one_or_several(st.sampled_from(FATES)),
        "rule": one_or_several(st.sampled_from(RULES)),
        "step": STEPS,
        "step_read": STEPS,
        "since": st.integers(-1, 21).map(lambda quarter: T0 + quarter / 4),
        "until": st.integers(-1, 21).map(lambda quarter: T0 + quarter / 4),
        "contains": st.sampled_from(["ello", "Hello", "'", "%", "ü", "content"]),
        "limit": st.integers(0, 10),
        "after": st.integers(-1, 30),
    },
)


def values_of(value):
    return value if isinstance(value, list) else [value]


def is_within(step, wanted):
    if not isinstance(wanted, range | slice):
        return step in values_of(wanted)
    low = -(2**63) if wanted.start is None else wanted.start
    high = 2**63 if wanted.stop is None else wanted.stop
    return step is not None and low <= step < high


def matches(found, fields):
    """Tell by plain Python whether a row matches."""
    from_id, to_id = end_of(found, "from"), end_of(found, "to")
    return (
        all(name not in fields or is_within(found[name], fields[name]) for name in ("step", "step_read"))
        and ("from_id" not in fields or from_id in values_of(fields["from_id"]))
        and ("to_id" not in fields or to_id in values_of(fields["to_id"]))
        and ("agent" not in fields or {from_id, to_id} & {*values_of(fields["agent"])})
        and all(
            name not in fields or found[name] in values_of(fields[name])
            for name in ("channel", "subtopic", "fate", "rule")
        )
        and found["sent_at"].timestamp() >= fields.get("since", 0)
        and found["sent_at"].timestamp() < fields.get("until", 2**60)
        and fields.get("contains", "") in found["payload"]
    )


def expected(rows, fields):
    after = fields.get("after", -1)
    found = [place for place, one in enumerate(rows) if place > after and matches(one, fields)]
    return found[: fields.get("limit")]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(log=logs(), fields=QUESTIONS, row_group_rows=st.sampled_from([1, 4, 1000]))
def test_any_query_over_any_rows(tmp_path_factory, log, fields, row_group_rows):
    rows, parts = log
    folder = write_folder(tmp_path_factory.mktemp("log"), parts[:-1], row_group_rows=row_group_rows)
    table = log_of(folder, parts[-1:]).query(**fields)
    places = expected(rows, fields)
    assert table["position"].to_pylist() == places
    assert table["message_id"].to_pylist() == [rows[place]["message_id"] for place in places]
    texts = any(isinstance(end_of(rows[place], end), str) for place in places for end in ("from", "to"))
    from_ids = [end_of(rows[place], "from") for place in places]
    assert table["from_id"].to_pylist() == [str(end) if texts and end is not None else end for end in from_ids]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(
    log=logs(),
    by=st.lists(st.sampled_from(["fate", "from_id", "rule", "step", "channel", "second"]), min_size=1, unique=True),
)
def test_counts(tmp_path_factory, log, by):
    rows, parts = log
    counted = log_of(write_folder(tmp_path_factory.mktemp("log"), parts[:-1]), parts[-1:]).count(by)
    texts = any(isinstance(end_of(one, "from"), str) for one in rows)

    def key(one):
        from_id = end_of(one, "from")
        derived = {
            "from_id": str(from_id) if texts and from_id is not None else from_id,
            "second": one["sent_at"].replace(microsecond=0),
        }
        return tuple(derived.get(name) if name in derived else one[name] for name in by)

    found = {tuple(one[name] for name in by): one["count"] for one in counted.to_pylist()}
    assert found == Counter(map(key, rows))
    sizes = counted["count"].to_pylist()
    assert sizes == sorted(sizes, reverse=True)


@pytest.fixture
def log(tmp_path):
    """Give a log of two segments, and a row in memory."""
    first = [row(0, 1, 2, step=1), row(1, None, 2, step=2), row(2, 2, None), row(3, "ann", 1, step=3)]
    second = [row(4, 2, 1, fate="blocked", rule="black_list", reason="no", labels=["x", "y"]), row(5, 1, 2, step=5)]
    return log_of(write_folder(tmp_path, [first, second]), [[row(6, 2, 2)]])


def positions(table):
    return table["position"].to_pylist()


def test_the_columns(log):
    table = log.query()
    assert table.column_names == [
        "message_id", "step", "step_read", "ordinal", "channel", "subtopic", "from_id", "to_id", "audience",
        "audience_version", "pairs", "in_reply_to", "expects_answer", "caused_by", "payload", "payload_before",
        "labels", "sent_at", "delivered_at", "fate", "rule", "reason", "sender", "mailbox", "position",
    ]  # fmt: skip
    assert str(table["fate"].type) == "string"
    assert str(table["from_id"].type) == "string"
    assert str(log.query(step=[1, 5])["from_id"].type) == "int64"
    assert log.query(fate="blocked")["labels"].to_pylist() == [["x", "y"]]
    assert log.query(internal=True).column_names[-4:] == ["noted", "entry", "row", "position"]
    empty = log.query(from_id=99)
    assert empty.schema.field("from_id").type == "int64"
    assert empty.column_names == table.column_names
    assert list(log.query(step=1).to_pandas()["message_id"]) == ["s-1-0"]


@pytest.mark.parametrize(
    ("fields", "groups"),
    [
        ({"from_id": 3}, [3]),
        ({"from_id": [2, 99, 7]}, [2, 7]),
        ({"from_id": 77}, []),
        ({"agent": 3}, [3]),
        ({"step": range(3, 4)}, [3]),
        ({"step_read": [4], "to_id": [2]}, [3]),
        ({"since": T0 + 30, "until": T0 + 40}, [3]),
        ({"after": 69}, [7, 8, 9]),
        ({"after": 29, "step": 3}, [3]),
        ({"in_reply_to": "q-35"}, [3]),
        ({"fate": "blocked"}, [7, 8, 9]),
        ({"fate": ["delivered", "blocked"]}, [*range(10)]),
        ({"fate": "published"}, []),
    ],
)
def test_row_groups_that_cannot_match_are_not_read(tmp_path, fields, groups):
    rows = []
    for n in range(100):
        steps = {"step": n // 10, "step_read": n // 10 + 1}
        asked, fate = None if n < 10 else f"q-{n}", "delivered" if n < 70 else "blocked"
        rows.append(row(n, from_id=n // 10, in_reply_to=asked, fate=fate, **steps))
    write_folder(tmp_path, [rows], row_group_rows=10)
    assert groups_read(tmp_path, fields) == groups


def test_ids_in_any_form(log):
    import numpy as np

    assert positions(log.query(from_id="1")) == positions(log.query(from_id=np.int32(1))) == [0, 5]
    assert positions(log.query(from_id=np.array([1, 2]), fate="delivered")) == [0, 2, 5, 6]


def test_times(log):
    since = T0 + 4
    day = datetime.fromtimestamp(since, UTC)
    for form in (since, int(since), day, day.isoformat(), day.replace(tzinfo=None).isoformat()):
        assert positions(log.query(since=form)) == [4, 5, 6]
        assert positions(log.query(until=form)) == [0, 1, 2, 3]


def test_a_conversation(log):
    assert positions(log.conversation(1, 2)) == [0, 4, 5]
    assert positions(log.conversation(2, 1, fate="delivered", limit=1)) == [0]
    assert positions(log.conversation(2, None)) == [1, 2]
    assert positions(log.conversation(2, "2")) == [6]
    with pytest.raises(InvalidQuery, match="agent=3 cannot be used for a conversation"):
        log.conversation(1, 2, agent=3)


def test_a_conversation_is_told_by_time(tmp_path):
    rows = [row(0, 1, 2, sent_at=T0 + 5), row(1, 2, 1, sent_at=T0), row(2, 1, 2, sent_at=T0 + 5)]
    assert positions(log_of(write_folder(tmp_path, [rows])).conversation(1, 2)) == [1, 0, 2]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"form_id": 1}, "no field 'form_id': write 'from_id', or else one of from_id, to_id, agent"),
        ({"zzz": 1}, "no field 'zzz': write one of from_id, "),
        ({"from_id": 1.5}, "from_id=1.5 cannot be an agent's id"),
        ({"agent": "a\n"}, r"agent='a\\n' cannot be an agent's id"),
        ({"fate": "deliverd"}, "'deliverd' is not a fate: write 'delivered' or 'published' or "),
        ({"fate": None}, "every row has a value"),
        ({"channel": 5}, "channel=5 must be a str"),
        ({"rule": ["a", 5]}, "rule=5 must be a str"),
        ({"from_id": (3, 4)}, r"could mean one agent, .* or several agents: write \[\(3, 4\)\] or \[3, 4\]"),
        ({"step": (1, 5)}, "could mean two steps, or all steps between two"),
        ({"step": range(1, 9, 2)}, "skips steps"),
        ({"step": "1"}, "must be an int"),
        ({"step": True}, "must be an int"),
        ({"since": "yesterday"}, "is not a time: write it like '2026-"),
        ({"since": datetime(2026, 1, 1)}, "has no time zone"),  # noqa: DTZ001
        ({"until": float("nan")}, "not a time that the log can hold"),
        ({"until": [1]}, "is not a time"),
        ({"contains": ""}, "must be a str that is not empty"),
        ({"contains": "\ud800"}, "is not valid Unicode"),
        ({"limit": -1}, "must be 0 or more"),
        ({"limit": 2.5}, "must be an int"),
        ({"after": -2}, "must be -1 or more"),
    ],
)
def test_invalid_queries_are_refused(log, fields, words):
    with pytest.raises(InvalidQuery, match=words) as caught:
        log.query(**fields)
    assert caught.value.field == next(iter(fields))


@pytest.mark.parametrize(
    ("by", "words"), [("fates", "write 'fate', or else"), (["fate", "labels"], "'labels'"), (5, "5")]
)
def test_invalid_count_fields_are_refused(log, by, words):
    with pytest.raises(InvalidQuery, match=words):
        log.count(by)
