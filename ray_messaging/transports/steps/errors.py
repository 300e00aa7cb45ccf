"""Errors of step stores."""

from ray_messaging.errors import AlreadyExists, Closed, ConfigError, Fenced, UnknownName


def overtaken(group: str, attempt: int) -> Fenced:
    """Build the error for a driver that has a successor."""
    return Fenced(
        f"a later driver has group {group!r}, or this one gave it up (our attempt is {attempt}): nothing of the open "
        "step counts. End this task",
        name=group,
        epoch=attempt,
    )


def unknown_group(group: str, attempt: int) -> Fenced:
    """Build the error for a driver of which the server knows nothing."""
    return Fenced(
        f"the server knows nothing of attempt {attempt} of group {group!r}: it was flushed, or restored from older "
        "data. End this task, and begin anew",
        name=group,
        epoch=attempt,
    )


def no_steps(group: str) -> UnknownName:
    """Build the error for a group that has not joined the steps."""
    return UnknownName(f"group {group!r} has not joined the steps of its experiment", kind="group", value=group)


def leaving(group: str) -> AlreadyExists:
    """Build the error for a group that joins before it has left."""
    return AlreadyExists(
        f"group {group!r} is leaving and has steps to close before: join it again after these",
        kind="group",
        value=group,
        owner=None,
    )


def without_steps(exp_id: str) -> ConfigError:
    """Build the error for an experiment without steps."""
    return ConfigError(f"experiment {exp_id!r} has no steps: start it with steps=Steps()")


def too_far(group: str, step: int, closed: int) -> Fenced:
    """Build the error for opening a step that is not the next one."""
    return _behind(group, closed, f"cannot open step {step}: the last one that it closed is {closed}")


def too_late(at_step: int | None, latest: int) -> ConfigError:
    """Build the error for another graph of groups than the one that a step has begun with."""
    asked = "the steps have begun" if at_step is None else f"at_step={at_step}"
    return ConfigError(
        f"{asked}: step {latest} is open, and its messages are for the groups that were declared before. Declare other "
        f"ones with at_step={latest + 2} or later"
    )


def not_closable(group: str, step: int, closed: int, until: int | None) -> Exception:
    """Build the error for closing a step that is not open; from step `until` on the group does not count."""
    if until is not None and step >= until:
        return Closed(
            f"group {group!r} was removed, or has left, and does not count in step {step}: nothing of it is committed"
        )
    return _behind(group, closed, f"cannot close step {step}, which it has not opened; it has closed {closed}")


def _behind(group: str, closed: int, what: str) -> Fenced:
    """Build the error for a step with which the server does not count."""
    return Fenced(
        f"group {group!r} {what}. It was removed and created again, or the server has lost steps: it was flushed, "
        "restored from older data, or killed before it had written them (appendfsync always loses none). Drive all "
        "groups again from there, or begin anew",
        name=group,
        epoch=closed,
    )
