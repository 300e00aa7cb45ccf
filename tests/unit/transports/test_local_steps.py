"""The steps of a run with one group, in memory: they obey the rules of the steps on a server."""

import asyncio

import numpy as np
import pyarrow as pa
import pytest

from ray_messaging import columns, run
from ray_messaging.addressing.directory import Directory
from ray_messaging.config import RedisConfig
from ray_messaging.errors import ConfigError
from ray_messaging.transports.local_steps import LocalSteps
from ray_messaging.transports.step_values import Closing, Cover, Driver, Refused, StepSettings, StepTag, box_name
from ray_messaging.transports.transport import RedisTransport
from ray_messaging.transports.transport_values import FrameFate, FrameWrite, Published, SendRequest

GROUP = "g"


def steps(**settings):
    unconnected = RedisTransport(RedisConfig(server="127.0.0.1"), "e", patience_s=1.0)
    return LocalSteps(unconnected.steps, GROUP, StepSettings(**settings), Directory("e"))


def to_box(step, rows, frame=b"frame"):
    return FrameWrite(box_name(GROUP, step), 1, rows, frame)


def sent(*writes):
    return SendRequest(GROUP, 1, 0, -2, writes)


async def taken(store):
    return (await store.take(GROUP, Driver("test"), 1.0)).attempt


async def frames(store, step):
    return [(frame.tag.sent, frame.rows) for frame in await store.read_box(box_name(GROUP, step))]


def test_a_step_that_is_not_closed_leaves_nothing():
    async def check():
        store = steps()
        for _ in range(2):
            tag = StepTag(GROUP, 0, await taken(store))
            await store.send(sent(to_box(1, 2), to_box(3, 1)), tag)
        assert await frames(store, 1) == []
        closed = await store.close(GROUP, tag.attempt, 0, Closing(3), go_on=True)
        assert (closed.sealed, closed.following.covers) == (0, (Cover(GROUP, 0, tag.attempt, 2),))
        assert await frames(store, 1) == [(0, 2)]
        for step in (1, 2):
            closed = await store.commit(
                sent(to_box(step + 1, 5)), StepTag(GROUP, step, tag.attempt), Closing(5), go_on=True
            )
        assert closed.following.covers == (Cover(GROUP, 0, tag.attempt, 1), Cover(GROUP, 2, tag.attempt, 5))
        assert await frames(store, 1) == await frames(store, 2) == []  # what was read is gone

    asyncio.run(check())


def test_a_full_box_takes_nothing_more():
    async def check():
        store = steps(box_rows=3, box_bytes=20)
        tag = StepTag(GROUP, 0, await taken(store))
        assert await store.commit(sent(to_box(1, 2), to_box(1, 2)), tag, Closing(4)) is None
        reply = await store.send(sent(to_box(1, 3), to_box(1, 1), to_box(2, 1, bytes(21))), tag)
        assert reply.fates == [FrameFate.WRITTEN, FrameFate.TOO_LARGE, FrameFate.TOO_LARGE]
        assert await store.box_size(box_name(GROUP, 1)) == (3, 5, 3, 20)
        heard_by_nobody = FrameWrite("", 1, 1, publish=[Published("channel", bytes(21))])
        assert (await store.send(sent(heard_by_nobody), tag)).fates == [FrameFate.TOO_LARGE]

    asyncio.run(check())


def test_series_have_one_shape():
    async def check():
        store = steps()
        attempt = await taken(store)
        await store.close(GROUP, attempt, 0, Closing(0, series=b"mood\n1"))
        assert await store.close(GROUP, attempt, 1, Closing(0, series=b"age\n2")) == Refused(1, 0, series=b"mood")
        assert [each.data for each in await store.collected(5)] == [b"mood\n1"]

    asyncio.run(check())


def test_errors_are_those_of_steps_on_a_server():
    def collect(me):
        return {"mood": 0.5} if me.step < 1 else {"age": 1}

    found = []
    for groups in (1, 2):
        try:
            run(lambda *_: None, agents=4, groups=groups, until=3, collect=collect, progress=False)
        except ConfigError as error:
            found.append(str(error).replace("group1", "group0"))  # with two groups, either may be the first to fail
    assert len(found) == 2
    assert found[0] == found[1]
    assert "collected values" in found[0]


def test_a_write_does_not_look_at_all_frames_of_its_box_and_the_box_takes_as_much_as_its_limit():
    looked = []

    class Messages:
        @property
        def nbytes(self):
            looked.append(self)
            return 10

    async def check():
        store = steps(box_bytes=2 * 100 * 10)
        attempt, fates = await taken(store), []
        for step in range(3):
            for _ in range(100):
                write = FrameWrite(box_name(GROUP, 3), 1, 1, batch=Messages())
                fates += (await store.send(sent(write), StepTag(GROUP, step, attempt))).fates
            size = await store.box_size(box_name(GROUP, 3))
            assert (size.rows, size.nbytes) == (min(200, 100 * (step + 1)), min(2000, 1000 * (step + 1)))
            await store.close(GROUP, attempt, step, Closing(100), go_on=True)
        return fates

    assert asyncio.run(check()) == [FrameFate.WRITTEN] * 200 + [FrameFate.TOO_LARGE] * 100
    assert len(looked) <= 300 + 100 + 200  # each frame when it is written, and the box's frames once in each step


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("deliver_at", [1, 2])
def test_arrays_that_a_model_changes_after_its_send_are_read_as_they_were_sent(groups, deliver_at):
    def crowd(group, step):
        if len(step.messages):
            group.state["x"] = group.state["x"] + step.messages.column("x").sum()
            with pytest.raises(ValueError, match="read-only"):
                step.messages.column("x")[:] = 100.0
        if step.number == 0:
            senders, receivers, numbers = group.ids.copy(), group.ids.copy(), group.ids + 0.5
            step.send_columns(senders, receivers, columns(x=numbers), deliver_at=deliver_at)
            for array in (senders, receivers, numbers):
                array[:] = 0

    def start(_group):
        return {"x": np.zeros(1)}

    result = run(crowd, agents=2, groups=groups, until=4, by="group", start=start, progress=False)
    assert sum(state["x"].sum() for state in result.states.values()) == 0.5 + 1.5


@pytest.mark.parametrize("groups", [1, 2])
def test_an_arrow_array_over_the_memory_of_a_numpy_array_is_read_as_it_was_sent(groups):
    arrays = {}

    def crowd(group, step):
        memory = arrays.setdefault(group.name, np.zeros(len(group.ids)))
        memory += 1  # the messages of the step before used this memory
        if len(step.messages):
            group.state["x"] = group.state["x"] + step.messages.column("x").sum()
        step.send_columns(group.ids, group.ids, pa.record_batch({"x": pa.array(memory)}))

    def start(_group):
        return {"x": np.zeros(1)}

    result = run(crowd, agents=2, groups=groups, until=3, by="group", start=start, progress=False)
    assert sum(state["x"].sum() for state in result.states.values()) == 2 * (1 + 2)
