"""The watch over stragglers: it names each group and step once, and again after twice as long."""

import asyncio
import logging

from support.patience import WAIT_S

from ray_messaging.cluster.actors.step_rule_runner import StragglerWatch
from ray_messaging.transports.step_values import Closing, Driver, GroupProgress, Progress, StepSettings


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


async def test_it_looks_by_itself(caplog, transports):
    steps = (await transports()).steps
    await steps.begin(StepSettings())
    for name in ("idle", "driven"):
        await steps.join(name)
    taken = await steps.take("driven", Driver("a task"), 10.0)
    await steps.open("driven", taken.attempt, 0)
    await steps.close("driven", taken.attempt, 0, Closing(0))
    named = asyncio.Event()
    handler = logging.Handler()
    handler.emit = lambda _record: named.set()
    logger = logging.getLogger("ray_messaging.cluster.actors.step_rule_runner")
    logger.addHandler(handler)
    watch = StragglerWatch(steps, "town", 0.01)
    try:
        async with asyncio.timeout(WAIT_S):
            await named.wait()
    finally:
        logger.removeHandler(handler)
        await watch.close()
    assert "no task has opened group 'idle'" in str(watch.late[0])
    assert "no task has opened group 'idle'" in caplog.text
