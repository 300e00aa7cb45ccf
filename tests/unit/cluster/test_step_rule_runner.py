"""The watch over stragglers: it names each group and step once, and again after twice as long."""

import logging

from ray_messaging.cluster.actors.step_rule_runner import StragglerWatch
from ray_messaging.transports.step_values import Driver, GroupProgress, Progress


async def test_it_names_a_straggler_once_and_then_after_twice_as_long(caplog):
    watch = StragglerWatch(None, "town", 30.0)  # by itself it looks after 30 s only
    caplog.set_level(logging.WARNING)
    named, ahead = [], GroupProgress(3, None, Driver("m"), 0, 0, None)
    for seconds in (10, 31, 40, 61, 63, 100, 127):
        late = GroupProgress(2, None, None, seconds * 1000, 0, None)
        watch.look(Progress(2, 3, None, {"late": late, "ahead": ahead}, {}, "0-0"))
        named += [seconds] * len(caplog.records)
        caplog.clear()
    await watch.close()
    assert named == [31, 63, 127]
    assert [straggler.group for straggler in watch.late] == ["late"]
