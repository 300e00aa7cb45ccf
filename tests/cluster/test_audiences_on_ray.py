"""Audiences on Ray: made, changed and removed from any process, read by groups and messagers."""

import pickle
import uuid
from pathlib import Path

import numpy as np
import pytest
import ray

from ray_messaging import Messaging, Steps
from ray_messaging.cluster.handles.connection import NAMESPACE
from ray_messaging.errors import (
    AlreadyExists,
    AudienceTooLarge,
    ConfigError,
    InvalidAddress,
    InvalidColumns,
    UnknownName,
    UnknownSender,
)

GRAPH = np.array([[0, 10], [0, 11], [10, 1], [0, 10]], np.int32)


@pytest.fixture
def name():
    return f"audience-{uuid.uuid4().hex[:8]}"


def pairs_of(audience):
    return [tuple(pair) for chunk in audience.edges() for pair in chunk.tolist()]


def test_a_graph_is_kept_and_read(logged, name):
    messaging, _, _ = logged
    made = messaging.create_audience(name, graph=iter([GRAPH[:2], GRAPH[2:]]))
    assert (made.name, made.kind, made.version, made.pairs) == (name, "graph", 1, 3)
    found = pickle.loads(pickle.dumps(messaging.audience(name)))
    assert found == made
    assert found in messaging.audiences()
    assert pairs_of(found) == [(0, 10), (0, 11), (10, 1)]
    assert found.members().tolist() == [1, 10, 11]
    with pytest.raises(ConfigError, match="was not made from members"):
        found.add([2])
    messaging.remove_audience(name)
    assert found not in messaging.audiences()
    for call in (lambda: found.version, lambda: [*found.edges()], lambda: messaging.audience(name)):
        with pytest.raises(UnknownName, match="was removed"):
            call()
    with pytest.raises(UnknownName, match="was removed"):
        messaging.remove_audience(name)
    assert messaging.create_audience(name, graph=[(1, 2)]).version == 3


def test_members_come_and_go(logged, name):
    messaging, _, _ = logged
    plaza = messaging.create_audience(name, members=[3, 1, 2])
    assert (plaza.kind, plaza.pairs, plaza.members().tolist()) == ("members", 6, [1, 2, 3])
    plaza.add([15, 1])
    plaza.add([15])  # changes nothing
    assert plaza.version == 2
    plaza.remove([3, 99])
    assert (plaza.version, plaza.members().tolist()) == (3, [1, 2, 15])
    assert pairs_of(plaza) == [(1, 2), (1, 15), (2, 1), (2, 15), (15, 1), (15, 2)]


def test_bad_input_is_refused_with_the_value(logged, name):
    messaging, _, _ = logged
    with pytest.raises(UnknownName, match="cannot have agent 77, because no group hosts that agent") as caught:
        messaging.create_audience(name, graph=[(0, 77), (88, 1)])
    assert (caught.value.kind, caught.value.value) == ("agent", 77)
    with pytest.raises(InvalidColumns, match=r"shape \(3,\)"):
        messaging.create_audience(name, graph=[1, 2, 3])
    with pytest.raises(InvalidColumns, match="graph=7 is not a graph"):
        messaging.create_audience(name, graph=7)
    with pytest.raises(InvalidAddress, match=r"1\.5"):
        messaging.create_audience(name, members=[1.5])
    with pytest.raises(InvalidAddress, match="a/b"):
        messaging.create_audience("a/b", members=[1])
    with pytest.raises(ConfigError, match="needs exactly one of"):
        messaging.create_audience(name)
    messaging.create_audience(name, members=[1])
    with pytest.raises(AlreadyExists, match="exists already"):
        messaging.create_audience(name, members=[1])
    with pytest.raises(UnknownName, match="agent 77"):
        messaging.audience(name).add([77])
    with pytest.raises(UnknownName, match="there is no audience 'nobody'"):
        messaging.audience("nobody")


@ray.remote(num_cpus=0)
def change(audience, ids):
    audience.add(ids)


@pytest.mark.long
def test_changes_of_many_tasks_at_once_all_count(logged, name):
    messaging, _, _ = logged
    plaza = messaging.create_audience(name, members=[])
    ray.get([change.remote(plaza, [number]) for number in range(6)])
    assert plaza.members().tolist() == [*range(6)]
    assert plaza.version == 7


@pytest.mark.long
def test_another_node_reads_and_changes_through_an_actor_that_ends_with_the_experiment(ray_cluster, name, monkeypatch):
    monkeypatch.setattr("ray_messaging.cluster.audience_files.AudienceFiles._here", lambda self: False)
    actor = f"{name}/audiences"
    with Messaging.start(name) as messaging:
        messaging.create_group("all", range(12))
        plaza = messaging.create_audience("plaza", members=[1])
        for member in (2, 3):
            # As where it ends with the last handle of another process.
            ray.kill(ray.get_actor(actor, namespace=NAMESPACE))
            plaza.add([member])
        assert plaza.members().tolist() == [1, 2, 3]
        assert pairs_of(messaging.create_audience("graph", graph=GRAPH)) == [(0, 10), (0, 11), (10, 1)]
        messaging.remove_audience("plaza")
        with pytest.raises(UnknownName, match="removed"):
            plaza.add([1])
    with pytest.raises(ValueError, match=actor):
        ray.get_actor(actor, namespace=NAMESPACE)


@pytest.mark.long
async def test_a_messager_of_the_own_broadcasts(logged, name):
    messaging, west, east = logged
    plaza = messaging.create_audience(name, members=[1, 2, 11])
    async with await messaging.open_messager("speaker", [500]) as speaker:
        receipts = await speaker.broadcast(500, plaza, {"text": "hello"})
    assert [receipt.fate for receipt in receipts] == ["delivered"] * 3
    heard = []
    for group in (west, east):
        async with await group.aio.fetch_messages(complete=True) as messages:
            heard += [message.to_id for message in messages]
    assert sorted(heard) == [1, 2, 11]
    messaging.remove_messager("speaker")


@pytest.mark.long
def test_audiences_survive_a_resume(ray_cluster, tmp_path):
    exp_id = f"kept-{uuid.uuid4().hex[:8]}"
    places = {"log_dir": tmp_path / "log", "data_dir": tmp_path / "data"}
    with Messaging.start(exp_id, **places) as messaging:
        messaging.create_audience("plaza", members=[1, 2])
    with Messaging.start(exp_id, on_existing="resume", **places) as messaging:
        assert messaging.audience("plaza").members().tolist() == [1, 2]
    with Messaging.start(exp_id, on_existing="reset", **places) as messaging:
        assert messaging.audiences() == []
        plaza = messaging.create_audience("plaza", members=[3])
        assert (plaza.version, plaza.members().tolist()) == (1, [3])


def test_groups_and_the_user_broadcast(logged, name):
    messaging, west, east = logged
    audience = messaging.create_audience(name, graph=[(1, 2), (1, 12), (1, 15), (2, 12)])
    west.fetch_messages(), east.fetch_messages()
    receipts = west.broadcast_columns([1, 2, 3], audience, [{"n": n} for n in range(3)])
    assert receipts.counts()["delivered"] == len(receipts) == 4
    assert len(west.broadcast(2, name, {"n": 3})) == 1
    found = east.fetch_messages(timeout=60, complete=True)
    assert [(m.from_id, m.to_id, m.payload["n"]) for m in found] == [(1, 12, 0), (1, 15, 0), (2, 12, 1), (2, 12, 3)]
    assert {message.id for message in found} <= {*receipts.message_ids, found[3].id}
    with pytest.raises(UnknownName, match="there is no audience"):
        west.broadcast(1, "ghosts", {"n": 4})
    with pytest.raises(UnknownSender):
        west.broadcast(15, audience, {"n": 4})
    receipts = messaging.broadcast("*", {"n": 5})
    assert receipts.counts()["delivered"] == 20
    assert sorted(m.to_id for m in east.fetch_messages(timeout=60, complete=True)) == [*range(10, 20)]
    assert {m.from_id for m in west.fetch_messages(timeout=60, complete=True)} == {None, 1}
    messaging.remove_audience(name)
    for group, sender in ((west, 1), (east, 15)):
        with pytest.raises(UnknownName, match="was removed"):
            group.broadcast(sender, audience, {"n": 6})


def test_the_user_broadcasts_to_an_audience(logged, name):
    messaging, west, east = logged
    plaza = messaging.create_audience(name, members=[1, 12])
    for audience in (plaza, name):
        assert messaging.broadcast(audience, {"n": 1}).counts()["delivered"] == 2
    plaza.add([15])
    assert messaging.broadcast(plaza, {"n": 2}).counts()["delivered"] == 3
    heard = [(m.from_id, m.to_id, m.payload["n"]) for m in east.fetch_messages(timeout=60, complete=True)]
    assert heard == [(None, 12, 1), (None, 12, 1), (None, 12, 2), (None, 15, 2)]
    assert [m.to_id for m in west.fetch_messages(timeout=60, complete=True)] == [1, 1, 1]
    assert len(messaging.broadcast(messaging.create_audience(f"{name}-graph", graph=GRAPH), {"n": 3})) == 0


def test_positions_make_pairs_and_move(logged, name):
    messaging, _, _ = logged
    street = messaging.create_audience(name, positions=[[0, 0], [1, 0], [9, 9]], radius=2, ids=[1, 2, 15])
    assert (street.kind, street.pairs, pairs_of(street)) == ("positions", 2, [(1, 2), (2, 1)])
    street.move([2], [[9, 8]])
    assert pairs_of(street) == [(2, 15), (15, 2)]
    ids, points = street.positions()
    assert (ids.tolist(), points.tolist()) == ([1, 2, 15], [[0, 0], [9, 8], [9, 9]])
    with pytest.raises(AudienceTooLarge, match="400 agents"):
        messaging.create_audience(f"{name}-all", positions=np.zeros((400, 2)), radius=1, ids=range(400), most_pairs=9)
    with pytest.raises(InvalidColumns, match=r"shape \(20, d\)"):
        messaging.create_audience(f"{name}-all", positions=[[0, 0]], radius=1)
    with pytest.raises(InvalidColumns, match=r"row 1 of the positions is \[0.0, nan\]"):
        messaging.create_audience(f"{name}-all", positions=[[0, 0], [0, np.nan]], radius=1, ids=[1, 2])
    with pytest.raises(UnknownName, match="agent 77, because no group hosts that agent"):
        messaging.create_audience(f"{name}-all", positions=[[0, 0]], radius=1, ids=[77])
    with pytest.raises(ConfigError, match="has no positions"):
        messaging.create_audience(f"{name}-members", members=[1]).move([1], [[0, 0]])


@pytest.mark.long
def test_groups_that_move_agents_get_no_warning_of_a_blocked_loop(ray_cluster, name):
    def walk(group, step):
        group.state["warned"] = np.array([ray._private.worker.blocking_get_inside_async_warned])
        step.move("street", group.ids, step.uniform(2))

    with Messaging.start(name, steps=Steps()) as messaging:
        messaging.create_audience("street", positions=np.zeros((4, 2)), radius=1.0, ids=range(4))
        result = messaging.run(walk, agents=4, groups=2, until=3, by="group", progress=False)
    assert not any(state["warned"].any() for state in result.states.values())


@pytest.mark.long
def test_without_a_log_the_files_go_with_the_experiment(ray_cluster, name):
    with Messaging.start(name) as messaging:
        messaging.create_audience("plaza", members=[1])
        folder = Path(messaging._connection.experiment.audiences.folder)
        assert (folder / "plaza@1").exists()
    assert not folder.exists()
