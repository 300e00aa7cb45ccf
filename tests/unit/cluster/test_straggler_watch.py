"""The watch over stragglers: it names each group and step once, and again after twice as long."""

import asyncio
import logging

from support.patience import WAIT_S

from ray_messaging.cluster.actors.step_rule_runner import StragglerWatch
from ray_messaging.transports.step_values import Driver, GroupProgress, Progress


class Clocked:
    """A store whose progress is given."""

    def __init__(self):
        self.idle_ms = 0

    async def progress(self):
        groups = {
            "late": GroupProgress(2, None, None, self.idle_ms, 0, None),
            "ahead": GroupProgress(3, None, Driver("m"), 0, 0, None),
        }
        return Progress(2, 3, None, groups, {}, "0-0")


async def test_it_names_a_straggler_once_and_then_after_twice_as_long(caplog):
    store = Clocked()
    watch = StragglerWatch(store, "town", 30.0)
    caplog.set_level(logging.WARNING)
    named = []
    for seconds in (10, 31, 40, 61, 63, 100, 127):
        store.idle_ms = seconds * 1000
        watch.look(await store.progress())
        named += [seconds] * len(caplog.records)
        caplog.clear()
    await watch.close()
    assert named == [31, 63, 127]
    assert [straggler.group for straggler in watch.late] == ["late"]


async def test_it_looks_by_itself(caplog):
    store = Clocked()
    store.idle_ms = 1000
    watch = StragglerWatch(store, "town", 0.01)
    async with asyncio.timeout(WAIT_S):
        while not watch.late:  # noqa: ASYNC110 - what is awaited has no event
            await asyncio.sleep(0.001)
    await watch.close()
    assert str(watch.late[0]) in caplog.text
