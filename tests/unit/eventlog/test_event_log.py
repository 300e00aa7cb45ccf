"""The log as its user sees it: edges, figures, the live tail, and the folder for other tools."""

import json
import sys

import networkx as nx
import pytest
from support.log_queries import T0, ViewSource, log_of, row, write_folder

from ray_messaging.errors import InvalidQuery, LogError, MessagingError
from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.eventlog.reading.event_rows import rows_as_seed, rows_of

# -- the folder --------------------------------------------------------------------------------------------------------


def test_a_folder_that_holds_no_log(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(LogError, match="holds no event log: pass the log_dir of a run") as caught:
            EventLog.open(path)
        assert caught.value.path == str(path)


# -- edges -------------------------------------------------------------------------------------------------------------


def test_edges_are_those_between_agents_by_time(log):
    edges = log.edges()
    assert edges.column_names == ["from_id", "to_id", "sent_at", "step", "subtopic", "message_id", "position"]
    assert edges["position"].to_pylist() == [0, 1, 2]
    assert edges["from_id"].to_pylist() == ["1", "1", "ann"]
    assert log.edges(fate=["published", "blocked"])["position"].to_pylist() == [3, 7]
    assert log.edges(from_id=99).column_names == edges.column_names


def test_a_message_in_two_mailboxes_is_one_edge(tmp_path):
    rows = [row(0), row(0, mailbox="observer", entry="9-0"), row(1)]
    log = log_of(write_folder(tmp_path, [rows]))
    assert log.edges()["position"].to_pylist() == [0, 2]
    assert log.balance().sends == 2


def test_networkx(log):
    graph = log.to_networkx()
    assert isinstance(graph, nx.MultiDiGraph)
    assert sorted(graph.edges(), key=str) == [("ann", 1), (1, 2), (1, 2)]
    assert {data["message_id"] for *_, data in graph.edges(data=True)} == {"s-1-0", "s-1-1", "s-1-2"}
    weighted = log.to_networkx(weighted=True)
    assert dict(weighted[1][2]) == {"weight": 2}
    assert dict(weighted["ann"][1]) == {"weight": 1}
    assert log.to_networkx(from_id=99).number_of_nodes() == 0


def test_without_networkx(log, monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(ImportError, match=r"pip install 'ray-messaging\[networkx\]'"):
        log.to_networkx()


# -- figures -----------------------------------------------------------------------------------------------------------


def test_stats(log):
    stats = log.stats()
    assert json.loads(json.dumps(stats)) == stats
    assert stats["rows"] == log.end + 1 == 8
    assert (stats["first"], stats["last"]) == (T0, T0 + 7)
    assert stats["fates"] == {"delivered": 5, "published": 1, "undeliverable": 1, "blocked": 1}
    assert stats["rules"] == {"black_list": {"blocked": 1}, "polite": {"published": 1}}
    assert (stats["writers"], stats["readers"]) == (3, 2)
    assert stats["busiest_readers"] == [[2, 5], [1, 2], [None, 1]]
    assert stats["busiest_writers"] == [[1, 3], [2, 3], ["ann", 1], [None, 1]]
    traffic = stats["traffic"]
    assert [sum(bins) for bins in traffic["fates"].values()] == [5, 1, 1, 1]
    assert traffic["start"] <= T0 < traffic["start"] + traffic["width_s"]
    assert stats["groups"] == {"from": ["s"], "to": ["m"], "delivered": [[5]]}
    assert log.stats(fate="blocked")["rows"] == 1
    assert (log.balance().sends, log.balance().fates) == (8, stats["fates"])
    nothing = log.stats(from_id=99)
    assert (nothing["rows"], nothing["first"], nothing["last"]) == (0, None, None)
    assert nothing["traffic"]["fates"]["delivered"] == []


def test_the_matrix_of_many_messagers_names_the_busiest(tmp_path):
    rows = [row(n, sender=f"s{n % 20}", message_id=f"s{n % 20}-1-{n}") for n in range(60)]
    groups = log_of(write_folder(tmp_path, [rows])).stats()["groups"]
    assert len(groups["from"]) == 16
    assert groups["from"][-1] == "(others)"
    assert [counts[0] for counts in groups["delivered"]] == [3] * 15 + [15]


# -- the tail ----------------------------------------------------------------------------------------------------------


def test_a_tail_returns_new_rows(folder):
    source = ViewSource(folder)
    tail = EventLog(source).tail()
    source.coming = [[row(8, 1, 2)], [row(9, 2, 1, fate="blocked")], [row(10, 2, 1)]]
    assert [found.message_id for found in tail] == ["s-1-8", "s-1-9", "s-1-10"]
    assert source.waited == [7, 8, 9, 10]
    assert tail.position == 10


def test_a_tail_with_fields_passes_over_the_others(folder):
    source = ViewSource(folder)
    source.coming = [[row(8)], [row(9, fate="blocked", rule="pattern", reason="rude")], [row(10)]]
    (found,) = EventLog(source).tail(after=3, fate="blocked")
    assert (found.message_id, found.rule, found.reason, found.position) == ("s-1-9", "pattern", "rude", 9)


def test_a_tail_goes_on_where_another_ended_and_that_of_a_finished_run_ends(log):
    assert [found.position for found in log.tail(after=-1, limit=3)] == [0, 1, 2]
    assert [found.position for found in log.tail(after=2)] == [3, 4, 5, 6, 7]
    assert list(log.tail()) == []


def test_a_tail_ends_when_nothing_comes(folder):
    source = ViewSource(folder)
    source.wait = lambda position, timeout_s: False  # stays live, and has no news
    assert list(EventLog(source).tail(timeout_s=0)) == []


def test_a_tail_refuses_at_once(log):
    with pytest.raises(InvalidQuery, match="write 'fate', or else"):
        log.tail(fat="blocked")
    with pytest.raises(InvalidQuery, match="limit=-1"):
        log.tail(limit=-1)


# -- rows --------------------------------------------------------------------------------------------------------------


def test_rows_as_objects(log):
    rows = list(rows_of(log.query()))
    assert [found.from_id for found in rows] == [1, 1, "ann", 2, 2, None, 2, 1]
    assert rows[0].labels == ("kind",)
    assert rows[1].labels == ()
    assert rows[2].payload == {"content": 'a "quoted", text'}
    assert (rows[0].sent_at, rows[0].delivered_at, rows[3].delivered_at) == (T0, T0 + 0.001, None)
    assert (rows[7].payload_before, rows[0].payload_before) == ({"content": "before"}, None)
    assert [found.sent for found in rows[2:5]] == [True, False, False]


def test_rows_in_the_seeds_form(log):
    first, blocked = rows_as_seed(log.query(limit=4))[::3]
    assert first == {
        "channel": "exps:test:agents:2:agent-chat",
        "payload": {"content": "hello 0"},
        "from_id": 1,
        "to_id": 2,
        "start_time": T0,
        "consumption": pytest.approx(0.001, abs=1e-6),
        "sent": True,
        "fate": "delivered",
        "rule": None,
        "reason": None,
        "message_id": "s-1-0",
    }
    assert (blocked["sent"], blocked["consumption"], blocked["rule"]) == (False, None, "black_list")


def test_an_unknown_question(folder):
    with pytest.raises(MessagingError, match="no query 'qurey': write 'query'"):
        ViewSource(folder).ask("qurey")
