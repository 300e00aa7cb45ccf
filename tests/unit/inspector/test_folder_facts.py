"""The folder of a log, as the inspector shows it."""

from dataclasses import astuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.log_queries import ROWS, T0, log_of, row, write_folder

from ray_messaging.errors import InvalidQuery
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.folder_records import RuleChange, RunStart, note_end, note_start, write_rule_changes
from ray_messaging.inspector.page_values import NAME_WIDTH, TEXT_WIDTH, RowQuery, Series, cut, spoken
from ray_messaging.inspector.pages.charts import network, society_network
from ray_messaging.inspector.sources.busiest_agents import AGENTS
from ray_messaging.inspector.sources.folder_facts import FolderFacts
from ray_messaging.transports.step_values import CollectedKind


@pytest.fixture
def source(tmp_path):
    return FolderFacts(write_folder(tmp_path / "log", [ROWS[:4], ROWS[4:]]).where)


def test_traffic_counts_each_row_once(source):
    traffic = source.traffic()
    assert (source.title, source.live, traffic.rows, traffic.messages) == ("log", False, 8, 8)
    assert {fate: sum(counts) for fate, counts in traffic.fates.items()} == {
        "delivered": 5,
        "published": 1,
        "undeliverable": 1,
        "blocked": 1,
    }
    assert traffic.blocked == {"black_list": [0, 0, 0, 1, 0, 0, 0, 0]}
    assert (traffic.start, traffic.in_steps, traffic.per_second) == (T0, False, 8 / 7)


def test_it_is_counted_once_until_the_log_grows(tmp_path):
    folder = write_folder(tmp_path / "log", [ROWS])
    source = FolderFacts(folder.where)
    first = source.traffic()
    assert source.traffic() is first
    source.log = log_of(folder, [[row(8)]])
    assert source.traffic().messages == 9


def test_a_long_run_has_wider_bins(tmp_path):
    rows = [row(0), row(1, sent_at=T0 + 7200)]
    traffic = FolderFacts(write_folder(tmp_path / "log", [rows]).where).traffic()
    assert (traffic.width, traffic.messages, len(traffic.fates["delivered"])) == (60.0, 2, 121)


@pytest.mark.parametrize(("steps", "width", "bins"), [(60, 1, 60), (300, 3, 100)])
def test_a_run_in_steps_is_counted_by_step(tmp_path, steps, width, bins):
    rows = [row(n, step=n // 2) for n in range(2 * steps)] + [row(2 * steps, None, 2)]
    traffic = FolderFacts(write_folder(tmp_path / "log", [rows]).where).traffic()
    assert (traffic.in_steps, traffic.start, traffic.width) == (True, 0, width)
    assert traffic.fates["delivered"] == [2 * width] * bins


def test_the_agents_that_write_most_their_network_and_the_busiest_pairs(tmp_path):
    rows = [row(n, 1, 2) for n in range(5)] + [row(5, 2, 1), row(6, 2, "ann"), row(7, None, 1), row(8, 3, 3)]
    rows += [row(9 + n, 100 + n, 1) for n in range(100)]
    society = FolderFacts(write_folder(tmp_path / "log", [rows]).where).society()
    assert (society.agents[:2], len(society.agents), society.writers) == ([("1", 5), ("2", 2)], AGENTS, 102)
    assert society.edges[:2] == [("1", "2", 5), ("100", "1", 1)]
    assert ("2", "1", 1) in society.edges
    assert society.pairs[0] == ("1", "2", 5)
    assert ("2", "1", 1) not in society.pairs


def test_rules_that_acted(source):
    assert [(rule.name, rule.done) for rule in source.rules()] == [
        ("black_list", "1 blocked"),
        ("polite", "1 changed, published"),
    ]


def test_the_rules_of_the_run_have_their_settings_and_changes(tmp_path):
    folder = write_folder(tmp_path / "log", [ROWS])
    rule = {"name": "black_list", "kind": "BlackList", "pairs": 2}
    note_start(folder, "town", {}, RunStart("r", "2026-01-01", "error", ["run.py"], {}, "valkey 9 at here", [rule]))
    late = {"name": "max_length", "kind": "MaxLength", "limit_bytes": 9}
    changes = [
        RuleChange(T0, "insert", late, 5, exact=True),
        RuleChange(T0, "remove", late, 7),
        RuleChange(T0, "x", rule),
    ]
    write_rule_changes(folder, changes)
    assert [rule[:3] for rule in map(astuple, FolderFacts(folder.where).rules())] == [
        ("black_list", "BlackList", "pairs=2"),
        ("max_length", "MaxLength", "limit_bytes=9"),
        ("polite", "", ""),
    ]
    assert [rule.done for rule in FolderFacts(folder.where).rules()] == [
        "1 blocked; x on 14 Nov 22:13:20.000",
        "insert from step 5; remove in the middle of step 7",
        "1 changed, published",
    ]


def test_pages_that_would_be_empty_are_named(source, tmp_path):
    assert source.lacks == ("Society", "Calls", "Dead letters")
    note_start(
        Folder(tmp_path / "log"), "town", None, RunStart("r", "2026-01-01", "error", ["run.py"], {}, "valkey", [])
    )
    ruleless = FolderFacts(tmp_path / "log")
    assert (ruleless.lacks, ruleless.phase) == (("Society", "Calls", "Why", "Rules", "Dead letters"), "no end")
    write_series(Folder(tmp_path / "log"), step=[0], mood=[0.5])
    assert "Society" not in FolderFacts(tmp_path / "log").lacks
    note_end(Folder(tmp_path / "log"), "r", {})
    assert FolderFacts(tmp_path / "log").phase == "ended"


@pytest.mark.parametrize(
    ("query", "positions"),
    [
        (RowQuery(), [0, 1, 2, 3, 4, 5, 6, 7]),
        (RowQuery(limit=2), [6, 7]),
        (RowQuery(from_id="ann"), [2]),
        (RowQuery(agent="1", to_id="2"), [0, 1, 7]),
        (RowQuery(from_id="the user"), [5]),
        (RowQuery(between=("1", "2")), [0, 1, 3, 7]),
        (RowQuery(between=("2", "")), [5, 6]),
        (RowQuery(between=("2", "2")), [4]),
        (RowQuery(contains="quoted"), [2]),
        (RowQuery(fate="blocked"), [3]),
        (RowQuery(rule="polite"), [7]),
        (RowQuery(step="1"), [0]),
        (RowQuery(step="0:5"), [0]),
    ],
)
def test_rows(source, query, positions):
    assert [found.position for found in source.rows(query)] == positions


@pytest.mark.parametrize("query", [RowQuery(step="soon"), RowQuery(fate="lost"), RowQuery(agent="a\x00b")])
def test_a_search_that_cannot_be_read_is_an_error(source, query):
    with pytest.raises(InvalidQuery):
        source.rows(query)


def test_an_agent(source):
    facts = source.agent("1")
    assert (facts.sent, facts.received) == ({"delivered": 2, "published": 1}, {"blocked": 1, "delivered": 1})
    assert (facts.writes_to, facts.hears_from) == ([("2", 3)], [("2", 1), ("ann", 1)])
    assert [found.position for found in facts.rows] == [0, 1, 2, 3, 7]


def test_what_ran(source, tmp_path):
    assert source.record() == [("record", "none: its folder has no _run.json")]
    start = RunStart("r", "2026-01-01", "error", ["run.py"], {}, "valkey 9 at here", [{"name": "no"}])
    note_start(Folder(tmp_path / "log"), "town", None, start)
    facts = dict(source.record())
    assert (facts["experiment"], facts["started"], facts["rules"]) == ("town", "2026-01-01, valkey 9 at here", "no")


def test_long_texts_are_cut_and_control_characters_are_visible(tmp_path):
    rows = [row(0, "<b>\u202e", 1, text="x" * 2**20), row(1, 1, 2, reason="\x07", labels=["<b>\x01"])]
    long, odd = FolderFacts(write_folder(tmp_path / "log", [rows]).where).rows(RowQuery())
    assert (len(long.text), long.text[-1], long.size) == (TEXT_WIDTH, "\u2026", 2**20 + 14)
    assert long.from_id == "<b>\u27e8U+202E\u27e9"
    assert (odd.reason, odd.labels) == ("\u2407", "<b>\u2401")


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ('{"content":"good\\nmorning\\u202e"}', ("good\nmorning⟨U+202E⟩", "")),
        ('{"mood":0.5,"text":"hello"}', ("hello", '{"mood": 0.5}')),
        ('{"content":5}', ('{"content":5}', "")),
        ('{"content":"cut of', ('{"content":"cut of', "")),
        ("[" * 100_000, ("[" * 100_000, "")),
    ],
)
def test_the_words_of_a_payload_come_before_its_json(payload, words):
    assert spoken(payload) == words


def test_rows_know_what_they_ask_and_answer(tmp_path):
    rows = [row(0, 1, 2, expects_answer=True), row(1, 2, 1, in_reply_to="s-1-0")]
    asked, answered = FolderFacts(write_folder(tmp_path / "log", [rows]).where).rows(RowQuery())
    assert (asked.asks, answered.in_reply_to) == (True, asked.message_id)


def write_series(folder, **columns):
    data = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), data)
    folder.write_collected(CollectedKind.SERIES, "0", (0, 1), data.getvalue(), epoch=0)


def test_what_the_run_collected_is_of_all_agents_together(tmp_path):
    folder = write_folder(tmp_path / "log", [ROWS])
    assert FolderFacts(folder.where).series() is None
    write_series(folder, step=[0, 1], mood=[0.5, 0.75], side=["left", "right"])
    assert FolderFacts(folder.where).series() == Series([0, 1], {"mood": [0.5, 0.75]})
    assert FolderFacts(folder.where).series("1") is None


def test_or_of_each_agent(tmp_path):
    folder = write_folder(tmp_path / "log", [ROWS])
    ends = {"agent": [1, None, 1, None], "agent_name": [None, "ann", None, "ann"]}
    write_series(folder, step=[0, 0, 1, 1], **ends, mood=[1, 2, 3, 4])
    source = FolderFacts(folder.where)
    assert source.series("1") == Series([0, 1], {"mood": [1, 3]})
    assert source.series("ann") == Series([0, 1], {"mood": [2, 4]})
    assert (source.series(), source.series("2"), source.series("the user")) == (None, None, None)
    states = [source.agent(agent).state for agent in ("ann", "1", "2")]
    assert states == [{"mood": "4"}, {"mood": "3"}, {}]
    society = source.society()
    assert society.measure == "mood"
    assert society.values == {"1": 3, "ann": 4}
    assert "mood 3" in str(network(society))


def society_of(tmp_path, rows=ROWS, **columns):
    folder = write_folder(tmp_path / "log", [rows])
    write_series(folder, **columns)
    return FolderFacts(folder.where)


def test_a_society_in_a_step_has_each_agent_with_its_value(tmp_path):
    source = society_of(tmp_path, step=[0, 0, 2, 2], agent=[0, 1, 0, 1], side=["left", "left", "left", "right"])
    last, first = source.society_in_step("", None, None), source.society_in_step("side", 1, None)
    assert (last.step, last.agents, last.values) == (2, ["0", "1"], ["left", "right"])
    assert (first.step, first.values, first.steps) == (0, ["left", "left"], [0, 2])  # step 1 has no values
    assert last.scale == first.scale == ["left", "right"]
    assert source.over_steps("") == Series([0, 2], {"left": [2, 1], "right": [0, 1]})
    with pytest.raises(InvalidQuery, match="has not collected 'mood' of its agents: it has 'side'"):
        source.society_in_step("mood", None, None)


def test_agents_stand_at_their_positions_or_in_the_cells_of_a_lattice(tmp_path):
    source = society_of(
        tmp_path / "moving", step=[0, 0, 1, 1], agent=[7, 9] * 2, x=[0.0, 1.0, 2.0, 1.5], y=[1, 1, 5, 3], mood=[1.0] * 4
    )
    found = source.society_in_step("mood", 0, None)
    assert (found.places, found.bounds, found.lattice) == ([(0.0, 1), (1.0, 1)], (0.0, 2.0, 1, 5), False)
    source = society_of(
        tmp_path / "lattice", step=[0] * 6 + [1] * 5, agent=[*range(6), 0, 1, 2, 4, 5], mood=[*range(6), *range(5)]
    )
    found = source.society_in_step("mood", 1, 3)
    assert found.places == [(0, 0), (1, 0), (2, 0), (1, 1), (2, 1)]  # agent 3 has departed: its cell is empty
    assert (found.bounds, found.lattice, found.scale) == ((0, 2, 0, 1), True, (0, 5))
    assert source.over_steps("mood") == Series([0, 1], {"mean": [2.5, 2.0]})


def test_cells_keep_their_places_when_most_agents_have_departed(tmp_path):
    source = society_of(tmp_path, step=[0] * 9 + [1] * 3, agent=[*range(9), 0, 4, 8], mood=[*range(12)])
    found = source.society_in_step("mood", 1, None)
    assert (found.places, found.bounds) == ([(0, 0), (1, 1), (2, 2)], (0, 2, 0, 2))


def test_values_and_names_that_begin_alike_are_counted_together_and_found_by_what_a_page_shows(tmp_path):
    said, measure = "a" * NAME_WIDTH, "m" * 2 * NAME_WIDTH
    source = society_of(
        tmp_path, step=[0] * 4, agent=[*range(4)], **{measure: [said + "1", said + "2", said + "2", "b"]}
    )
    found = source.society_in_step("", None, None)
    assert found.scale == [cut(said + "1", NAME_WIDTH), "b"]
    assert source.over_steps(found.measure).lines == {found.scale[0]: [3], "b": [1]}
    assert source.society_in_step(found.measure, None, None) == found


def test_messages_of_the_step_join_the_agents_of_a_small_society(tmp_path):
    rows = [
        row(0, 1, 2, step=0),
        row(1, 1, 2, step=0),
        row(2, 2, 2, step=0),
        row(3, 2, 1, step=1),
        row(4, 2, 7, step=0),
    ]
    source = society_of(tmp_path, rows, step=[0, 0, 1, 1], agent=[1, 2, 1, 2], mood=[1.0, float("nan"), 2.0, 3.0])
    found = source.society_in_step("mood", 0, None)
    assert (found.linked, found.edges, found.scale) == (True, [(0, 1, 2)], (1.0, 3.0))
    assert "mood nan" in str(society_network(found, 400))


def test_a_run_is_compared_with_another_run_beside_it(tmp_path):
    def said(folder, text):
        rows = [row(number, 1, 2, step=number, ordinal=0, text=text if number else "a") for number in range(2)]
        return write_folder(tmp_path / folder, [rows]).where

    source = FolderFacts(said("one", "b"), said("other", "c"))
    assert source.beside.title == "other"
    assert "differ first in step 1" in source.differences().first
    assert source.differences().lines == Series([0, 1], {"messages": [0, 1]})
    assert FolderFacts(tmp_path / "one", tmp_path / "one").differences().first == "The runs sent the same messages."
    assert FolderFacts(tmp_path / "one").differences() is None
