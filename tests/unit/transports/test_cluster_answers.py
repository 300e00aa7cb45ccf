"""Which node counts as the owner of a slot, where the nodes of a cluster say different things."""

from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace

import pytest
from redis.crc import key_slot
from support.answering import HOST, answering, oks

from ray_messaging.config import RedisConfig
from ray_messaging.transports.connection.cluster import ClusterNodes
from ray_messaging.transports.connection.discovery import NoPrimaryError, WrongSettingsError

HOME = "rm:{town}:"
SLOT = key_slot(HOME.encode())
OURS, REST = f"{SLOT}-{SLOT}", f"{SLOT + 1}-16383"


def node(name, port, epoch, slots="", *, flags="master", host=HOST, primary="-"):
    return f"{name} {host}:{port}@1,, {flags} {primary} 0 0 {epoch} connected {slots}".rstrip()


@asynccontextmanager
async def serving(*views):
    """Serve nodes, each with a view of its own, a function of all ports (None: it does not answer)."""
    nodes = SimpleNamespace(views=[*views], asked=[0] * len(views), ports=[])

    def answer(at, data):
        if b"NODES" not in data:
            return oks(data)
        nodes.asked[at] += 1
        if nodes.views[at] is None:
            return None
        text = "\n".join(nodes.views[at](nodes.ports)).encode()
        return b"$%d\r\n%b\r\n*0\r\n" % (len(text), text)  # and no slots

    async with answering(*(partial(answer, at) for at in range(len(views)))) as ports:
        nodes.ports += ports
        yield nodes


async def owner_told_by(ports):
    return await ClusterNodes(RedisConfig(cluster=[f"{HOST}:{port}" for port in ports]), HOME).primary()


def view(myself, *nodes):
    """Return a view in which one of the nodes (name, port's place, epoch, slots) is the one that answers."""

    def fill(ports):
        return [
            node(name, ports[at], epoch, slots, flags="myself,master" if name == myself else "master")
            for name, at, epoch, slots in nodes
        ]

    return fill


@pytest.mark.parametrize(
    "views",
    [
        pytest.param(
            [
                view("a", ("a", 0, 1, OURS), ("b", 1, 2, REST)),
                *(view(name, ("a", 0, 1, ""), ("b", 1, 7, OURS)) for name in "bc"),
            ],
            id="the highest epoch, although a cut off owner still claims the slot",
        ),
        pytest.param(
            [
                *(view(name, ("a", 0, 9, REST), ("b", 1, 8, OURS)) for name in "ab"),
                view("c", ("a", 0, 9, OURS), ("b", 1, 8, "")),
            ],
            id="none that disclaims the slot, whatever others have heard",
        ),
    ],
)
async def test_the_owner_that_counts(views):
    async with serving(*views) as nodes:
        assert await owner_told_by(nodes.ports) == (HOST, nodes.ports[1])


async def test_nodes_that_do_not_agree_yet_name_none():
    views = view("a", ("a", 0, 1, REST), ("b", 1, 2, OURS)), view("b", ("a", 0, 1, OURS), ("b", 1, 2, ""))
    async with serving(*views) as nodes:
        with pytest.raises(NoPrimaryError, match="is moving to another node") as caught:
            await owner_told_by(nodes.ports)
        assert not isinstance(caught.value, WrongSettingsError)


async def test_named_nodes_are_asked_when_the_seeds_are_gone():
    whole = [view(name, ("a", 0, 1, REST), ("b", 1, 2, OURS)) for name in "ab"]
    async with serving(*whole) as nodes:
        discovery = ClusterNodes(RedisConfig(cluster=[f"{HOST}:{nodes.ports[0]}"]), HOME)
        assert await discovery.primary() == (HOST, nodes.ports[1])
        assert nodes.asked == [1, 0]
        nodes.views[0] = None
        assert await discovery.primary() == (HOST, nodes.ports[1])


async def test_an_owner_that_is_down_is_not_named():
    def down(ports):
        return [node("a", ports[0], 1, flags="myself,master"), node("b", 7, 2, OURS, flags="master,fail")]

    async with serving(down) as nodes:
        with pytest.raises(NoPrimaryError, match=rf"slot {SLOT}, {HOST}:7, is down, and no replica has"):
            await owner_told_by(nodes.ports)


async def test_a_slot_on_its_way_is_still_its_owners():
    def moving(ports):
        leaving = f"{SLOT} [{SLOT}->-b]"
        return [node("a", ports[0], 1, leaving, flags="myself,master"), node("b", 7, 2, f"[{SLOT}-<-a]")]

    async with serving(moving) as nodes:
        assert await owner_told_by(nodes.ports) == (HOST, nodes.ports[0])


@pytest.mark.long
async def test_silent_nodes_are_listed():
    async with serving(None, None) as nodes:
        with pytest.raises(NoPrimaryError, match=r"can be reached .*no \w+ in time.*no \w+ in time"):
            await owner_told_by(nodes.ports)
