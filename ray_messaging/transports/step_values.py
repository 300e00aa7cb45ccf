"""Values that go to the store of steps, and that it returns; its errors."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from ray_messaging.config import Steps
from ray_messaging.errors import AlreadyExists, Closed, ConfigError, Fenced, UnknownName
from ray_messaging.limits_and_timeouts import BOX_BYTES, BOX_ROWS, LAG_BYTES

OUTSIDE = ""  # the group of frames from outside
SUPERVISOR = ":rules"  # the member that closes each step after all groups; it is in no list of groups
NOTES = ":log"  # the box of notes for the event log; users' mailboxes have no colon
PUBLICATIONS = ":out"  # the box of messages for plain channels
PLACES = ":places"  # the box of new positions, which all groups read
STANDSTILL = -(2**31)  # where a hold is so far behind that no step begins, whoever resumes the steps
RULE_CHANGE, CTRL_C = "a change of the rules", "Ctrl-C"  # holds at a standstill
ASKER = "+"  # before the name of a mailbox outside of the steps: its boxes are answers, which a seal hands over


class WaitFor(StrEnum):
    """Groups that a group waits for before it opens a step: all, or those that it hears."""

    ALL = "all"
    SENDERS = "senders"


class StepSettings(NamedTuple):
    """Settings of an experiment's steps; they stay for as long as the experiment."""

    seed: int = 0
    wait_for: WaitFor = WaitFor.ALL
    groups: int = 0  # step 0 waits until so many have joined
    window: int = 8  # how many steps a group may be ahead of the slowest
    horizon: int = 64  # how many steps ahead a message may be sent
    lag: int = 64  # how many steps a hold may be behind; at most `horizon`, as counts are kept for so long
    lag_large: int = 4  # the same where the boxes that it keeps have more than `lag_bytes`
    lag_bytes: int = LAG_BYTES
    digest: bool = False  # whether groups leave the digests of what they send
    box_rows: int = BOX_ROWS
    box_bytes: int = BOX_BYTES

    @classmethod
    def of(cls, steps: Steps) -> "StepSettings":
        """Return the settings that a user gave, and our defaults for the rest."""
        return cls(steps.seed, WaitFor(steps.wait_for), groups=steps.groups or 0, digest=steps.digest)


class Driver(NamedTuple):
    """Task that drives a group; `start` rises each time that it begins, so that it follows itself.

    The same driver gets its attempt again, with the numbers of its frames: one that begins anew needs a higher start.
    """

    task: str
    start: int = 0


class Taken(NamedTuple):
    """A group that is ours to drive: the attempt, the last closed step (-1: none), and the state that it left.

    `until` is the first step in which the group does not count any more; None: it stays.
    """

    attempt: int
    closed: int
    state: bytes | None
    until: int | None


class Driven(NamedTuple):
    """A group that another driver has. `lease` changes with each sign of life, at least every `lease_s` seconds.

    A caller that sees the same lease for so long passes it as `over` to take the group.
    """

    driver: Driver
    lease: str
    lease_s: float


class Cover(NamedTuple):
    """Part of a box that counts: the rows that one attempt of a group sent in one step.

    For OUTSIDE the attempt is 0.
    """

    group: str
    sent: int
    attempt: int
    rows: int


class Opened(NamedTuple):
    """An open step, and all that counts of the group's box for it.

    `directory` is the version that the directory had at its opening, or later; -1: it is not known.
    """

    step: int
    covers: tuple[Cover, ...]
    directory: int = -1


class Reason(StrEnum):
    """Reason why a step cannot be opened yet."""

    GROUPS = "groups"  # some have not closed an earlier step
    MISSING = "missing"  # step 0: fewer groups have joined than the settings say
    WINDOW = "window"  # some are too far behind
    HOLD = "hold"  # a hold is too far behind
    PAUSED = "paused"


class Waiting(NamedTuple):
    """A step that cannot be opened yet: a few names that it waits for, their total, and a place in the news.

    As the answer to a close it has no names.
    """

    step: int
    reason: Reason
    names: tuple[str, ...]
    total: int
    news: str


class BoxStart(NamedTuple):
    """All that counts of a box, and its first frames."""

    covers: Sequence[Cover]
    frames: Sequence["BoxFrame"]


class News(NamedTuple):
    """News that woke those who wait: their place, the last step that is open to all who asked, how many boxes it has.

    `directory` is the directory's version. After a wait for nothing it is -1, as `opened` is. `start` is of the box
    that the caller named, as it was after the news; None: it was not read with them.
    """

    place: str
    opened: int = -1
    boxes: int = 0
    directory: int = -1
    start: BoxStart | None = None


class Done(NamedTuple):
    """A step that the group has closed, or in which it does not count any more; `closed` is its last closed one."""

    closed: int


class Closing(NamedTuple):
    """Facts that close a step: acknowledged rows in mailboxes' boxes, counts and state.

    `counts` is opaque here. With `state_changed` the group's state becomes `state` (None: there is none).
    """

    rows: int
    counts: bytes = b""
    state: bytes | None = None
    state_changed: bool = False


class Committed(NamedTuple):
    """A step that is closed: the last sealed one, and the answer for the next one where it was asked for."""

    step: int
    sealed: int
    following: Opened | Waiting | Done | None = None


class Refused(NamedTuple):
    """A step that cannot be closed, so that its attempt must end: nothing of it counts.

    The server has `rows` rows, which are not as many as were acknowledged, or the mailboxes `deaf` do not hear it.
    """

    step: int
    rows: int
    deaf: tuple[str, ...] = ()


class StepTag(NamedTuple):
    """Origin of a frame in a box: group, step in which it was sent, attempt."""

    group: str
    sent: int
    attempt: int


class BoxFrame(NamedTuple):
    """Frame in a box. For OUTSIDE, `first` counts the rows from outside that the step had before this frame.

    In NOTES, `note` belongs to the frame. In PUBLICATIONS, `publish` holds channels and data by turns.
    """

    entry: str
    tag: StepTag
    rows: int
    frame: bytes
    first: int = 0
    note: bytes | None = None
    publish: tuple[bytes, ...] = ()


class BoxSize(NamedTuple):
    """Rows and bytes of a box, without those of dead attempts, and its limits."""

    rows: int
    nbytes: int
    limit_rows: int
    limit_bytes: int


class ClosedStep(NamedTuple):
    """Closing of a step by a group: the attempt that counts, and its counts."""

    attempt: int
    counts: bytes


class GroupProgress(NamedTuple):
    """Progress of a group: last closed step, open step (None: none), its driver (None: none), ms since the last change.

    It counts from step `since` until before `until` (None: it stays).
    """

    closed: int
    open: int | None
    driver: Driver | None
    idle_ms: int
    since: int
    until: int | None


class Progress(NamedTuple):
    """Progress of all groups; steps are -1 where there is none yet.

    `target` is the last step that may be opened (None: no end). `holds` are the last steps that each hold has handled.
    `wait_for` is the mode that holds.
    The supervisor (None: there is none) is not among the groups; `supervised_by` is its name for people.
    """

    sealed: int
    latest: int
    target: int | None
    groups: dict[str, GroupProgress]
    holds: dict[str, int]
    news: str
    wait_for: WaitFor = WaitFor.ALL
    supervisor: GroupProgress | None = None
    supervised_by: str = SUPERVISOR

    def waiting_for(self) -> dict[str, int]:
        """Return the groups that hold up the next seal, with the step that each has to close; or the supervisor."""
        found = {
            name: group.closed + 1
            for name, group in self.groups.items()
            if group.closed <= self.sealed and (group.until is None or group.closed + 1 < group.until)
        }
        if not found and self.supervisor is not None and self.sealed < self.latest:
            return {self.supervised_by: self.sealed + 1}
        return found


def box_name(mailbox: str, step: int) -> str:
    """Return the name of the box of a mailbox (or NOTES, PUBLICATIONS) for a step."""
    return f"{mailbox}@{step}"


def counted(frames: Sequence[BoxFrame], covers: Sequence[Cover]) -> list[BoxFrame] | None:
    """Return the frames of a box that its covers name; None: rows are missing, so read the box again from its start."""
    left = {StepTag(cover.group, cover.sent, cover.attempt): cover.rows for cover in covers}
    found = [frame for frame in frames if frame.tag in left]
    for frame in found:
        left[frame.tag] -= frame.rows
    return None if any(left.values()) else found


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
