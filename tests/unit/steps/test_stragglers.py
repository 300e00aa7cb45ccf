"""Groups that hold up a step are found by their progress, and named."""

import pytest

from ray_messaging.steps.stragglers import stragglers
from ray_messaging.transports.step_values import Driver, GroupProgress, Progress


def group(closed, *, opened=None, driver="", idle_s=0.0, silent_s=0.0):
    driven = Driver(driver) if driver else None
    return GroupProgress(closed, opened, driven, int(idle_s * 1000), 0, None, int(silent_s * 1000))


def progress(target=None, **groups):
    return Progress(min(each.closed for each in groups.values()), 12, target, groups, {}, "0-0")


AHEAD = group(12, driver="messager ahead", idle_s=99)


@pytest.mark.parametrize(
    ("late", "text"),
    [
        (
            group(11, opened=12, driver="messager x", idle_s=41),
            "group 'x' has been in step 12 for 41 s, driven by 'messager x'",
        ),
        (
            group(11, opened=12, driver="m", idle_s=13, silent_s=12),
            "step 12 waits for group 'x': 'm', which drives the group, has not called the server for 12 s",
        ),
        (
            group(11, opened=12, idle_s=41),
            "group 'x' has been in step 12 for 41 s, and the task or process that drove it has gone",
        ),
        (group(11, idle_s=41), "no task has opened group 'x': step 12 has waited for it for 41 s"),
        (group(11, driver="m", idle_s=41), "group 'x' has not begun step 12 for 41 s, driven by 'm'"),
    ],
)
def test_a_group_that_holds_up_others_is_named_with_the_reason(late, text):
    (found,) = stragglers(progress(x=late, ahead=AHEAD), 30.0)
    assert str(found) == text
    assert found.remedy


@pytest.mark.parametrize(
    "now",
    [
        progress(x=group(11, opened=12, idle_s=29), ahead=AHEAD),  # not for long
        progress(x=group(11, opened=12, driver="m", idle_s=12, silent_s=9), ahead=AHEAD),  # its lease lasts 10 s
        progress(x=group(11, idle_s=99), y=group(11, idle_s=99)),  # nobody waits
        progress(11, x=group(11, idle_s=99), ahead=AHEAD),  # paused
    ],
)
def test_no_group_is_named_without_need(now):
    assert stragglers(now, 30.0) == []
