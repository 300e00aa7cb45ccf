"""Arguments, results and errors of the store of steps (transports/steps.py).

Some words: a box has the messages that one mailbox reads in one step. A step is sealed when all groups have closed it.
A hold is a record that a reader of sealed steps, such as the event log, makes on the server. Because of it, the server
keeps all boxes that the reader has not read.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from ray_messaging.default_limits_and_leases import BOX_BYTES, BOX_ROWS, LAG_BYTES, STEP_LEASE_S
from ray_messaging.errors import ConfigError, Fenced, UnknownName
from ray_messaging.model.batch import Batch

if TYPE_CHECKING:
    from ray_messaging.config import Steps

OUTSIDE = ""  # the name that frames from outside of the steps have in place of a group's name
# The name of the supervisor, a task of the interceptor. It takes part in the steps like a group, and closes each step
# after all groups. Lists of groups leave it out.
SUPERVISOR = ":rules"
NOTES = ":log"  # the box of notes for the event log; no user's mailbox has a colon in its name
PUBLICATIONS = ":out"  # the box of messages for plain channels
PLACES = ":places"  # the box of agents' new positions in space (see `step_moves`), which all groups read
STANDSTILL = -(2**31)  # with a hold (see `RedisSteps.hold`) at this position no step begins, even after `resume`
RULE_CHANGE, CTRL_C = "a change of the rules", "Ctrl-C"  # names of holds at position STANDSTILL
CHECKPOINT = "a checkpoint"  # the name of a hold that prevents all steps after its position
# An agent's answer to an asker outside of the steps is first written to a box. The box's name begins with this
# prefix and the name of the asker's mailbox. When all groups have closed the step, the server moves the
# answer to that mailbox.
ASKER = "+"


class WaitFor(StrEnum):
    """For which groups a group waits before it opens a step: for all groups, or only for groups that may send to it."""

    ALL = "all"
    SENDERS = "senders"


class StepSettings(NamedTuple):
    """Settings of an experiment's steps, which never change."""

    seed: int = 0
    wait_for: WaitFor = WaitFor.ALL
    groups: int = 0  # step 0 waits until this number of groups has joined
    window: int = 8  # how many steps a group may be ahead of the slowest group
    horizon: int = 64  # how many steps ahead a message may be sent
    # How many steps a hold (see `RedisSteps.hold`) may be behind the step that opens. `lag` is at most `horizon`,
    # because a step's counts are kept for `horizon` steps.
    lag: int = 64
    lag_large: int = 4  # replaces `lag` while the boxes that are kept for holds exceed `lag_bytes`
    lag_bytes: int = LAG_BYTES
    digest: bool = False  # whether groups store digests of the messages that they send
    box_rows: int = BOX_ROWS
    box_bytes: int = BOX_BYTES

    @classmethod
    def of(cls, steps: "Steps") -> "StepSettings":
        """Return the settings that a user gave, with defaults for those that a user cannot set."""
        # With "neighbours", agents call language models before a step opens, but steps still wait for all groups.
        wait_for = WaitFor.ALL if steps.wait_for == "neighbours" else WaitFor(steps.wait_for)
        return cls(steps.seed, wait_for, groups=steps.groups or 0, digest=steps.digest)


class Driver(NamedTuple):
    """A task that takes a group through its steps. Each time that the task begins again, its `start` must be higher.

    If the task began again with the same `start`, it would get the same attempt number again. Because of the equal
    numbers, the server would take the new frames for repeated ones.
    """

    task: str
    start: int = 0


class DrivenGroup(NamedTuple):
    """A group that this process now drives, which means that it takes the group through its steps.

    `attempt` is the number of this process as the group's driver; a later driver has a higher number. `closed` is the
    group's last closed step (-1: none), and `state` the group's state after this step (None: none). `until` is the
    first step in which the group no longer takes part (None: it always does).
    """

    attempt: int
    closed: int
    state: bytes | None
    until: int | None


class Driven(NamedTuple):
    """The answer to a process that wants to drive a group through its steps, while another process, `driver`, does so.

    `lease` changes at least every `lease_s` seconds while `driver` lives. If a caller sees the same lease for longer,
    it may take over the group by `take` with `over=lease`.
    """

    driver: Driver
    lease: str
    lease_s: float


class Cover(NamedTuple):
    """An entry in a box's list of committed rows: how many rows one attempt of a group at a step has sent to the box.

    The field `sent` is the number of the step in which the rows were sent. For frames whose group is OUTSIDE, because
    they come from senders outside of the steps, the attempt is 0.
    """

    group: str
    sent: int
    attempt: int
    rows: int


class Opened(NamedTuple):
    """An open step, and the covers of the box that the group reads in the step. Covers list committed attempts.

    `directory` is the version of the directory of mailboxes when the step was opened, or a later version (-1: not
    known). `blocked` says whether rules have blocked messages of the previous step. `news` is a position in the stream
    of news. The entry which says that the next step is open comes after this position.
    """

    step: int
    covers: tuple[Cover, ...]
    directory: int = -1
    blocked: bool = False
    news: str = ""


class Reason(StrEnum):
    """Reason why a step cannot be opened yet."""

    GROUPS = "groups"  # some groups have not closed an earlier step
    MISSING = "missing"  # for step 0: fewer groups have joined than the settings demand
    WINDOW = "window"  # some groups are too many steps behind
    HOLD = "hold"  # a hold, such as the event log's, is too many steps behind
    PAUSED = "paused"


class Waiting(NamedTuple):
    """A step that cannot be opened yet.

    The step waits for `total` groups, or for `total` readers such as the event log. `names` has some of their names. In
    the answer to a call of `close`, `names` is empty. `news` is a position in the stream on which the server tells of
    changes in the steps.
    """

    step: int
    reason: Reason
    names: tuple[str, ...]
    total: int
    news: str


class BoxStart(NamedTuple):
    """The beginning of a box: its first frames, and the covers, which list the committed attempts."""

    covers: Sequence[Cover]
    frames: Sequence["BoxFrame"]


class News(NamedTuple):
    """The latest entry that a wait for news about the steps has found.

    `place` is the position in the stream of news. `opened` is the last step that is open to all groups. `boxes` is how
    many boxes the step `opened` has. `directory` is the version of the directory of mailboxes. If the wait ended
    without news, `directory` and `opened` are -1. `blocked` says whether rules have blocked messages of the step before
    `opened`. `start` is the beginning of the box that the caller named, or None if the box was not read.
    """

    place: str
    opened: int = -1
    boxes: int = 0
    directory: int = -1
    blocked: bool = False
    start: BoxStart | None = None


class Done(NamedTuple):
    """The answer to a group that asks for a step that it has closed already, or in which it does not take part.

    `closed` is the last step that the group closed.
    """

    closed: int


class Closing(NamedTuple):
    """What a group hands in when it closes a step.

    `rows` is how many rows it has written to boxes of mailboxes in the step, and `counts` are its counts of messages.
    `series` are recorded data, `blocked` the messages that rules blocked, `calls` the results of remembered calls.
    `counts`, `series`, `blocked` and `calls` are stored as they are. With `state_changed` the group's state becomes
    `state` (None: no state).
    """

    rows: int
    counts: bytes = b""
    state: bytes | None = None
    state_changed: bool = False
    series: bytes = b""
    blocked: bytes = b""
    calls: bytes = b""


class CollectedKind(StrEnum):
    """Kind of data that a group stores in a step: data recorded with `collect`, or results of remembered calls."""

    SERIES = "series"
    CALLS = "calls"


class Collected(NamedTuple):
    """Data of one kind that a group has stored in one step. `entry` is the id of its stream entry."""

    entry: str
    kind: CollectedKind
    step: int
    group: str
    data: bytes


class Committed(NamedTuple):
    """The answer to a group that has closed `step`.

    `sealed` is the last step that all groups have closed. `following` is the answer about the next step. It is None if
    the group did not ask to open the next step, or if another driver has taken over the group.
    """

    step: int
    sealed: int
    following: Opened | Waiting | Done | None = None


class Refused(NamedTuple):
    """A step that cannot be closed. The attempt at it must end, and its messages are not delivered.

    There are three possible reasons. The server has `rows` rows of this attempt, but the group stated another number.
    The group sent to the mailboxes in `deaf`, although no call has declared that they hear the group. Or the group's
    recorded series do not have the columns of the run's earlier series: the first line, which describes the columns, is
    not `series`.
    """

    step: int
    rows: int
    deaf: tuple[str, ...] = ()
    series: bytes = b""


class StepTag(NamedTuple):
    """The origin of a frame in a box: the group, the step in which it was sent, and the number of the attempt."""

    group: str
    sent: int
    attempt: int


class BoxFrame(NamedTuple):
    """A frame in a box. A box has the messages that one mailbox reads in one step.

    The group OUTSIDE stands for senders outside of the steps. For a frame of this group, `first` is how many rows of
    the group are before the frame in the box. In the box NOTES, `note` is the note for the event log about the frame.
    In the box PUBLICATIONS, `publish` has channels and data alternately. For steps that are kept in this process,
    `batch` has the frame's messages, and `frame` is empty.
    """

    entry: str
    tag: StepTag
    rows: int
    frame: bytes
    first: int = 0
    note: bytes | None = None
    publish: tuple[bytes, ...] = ()
    batch: Batch | None = None

    @property
    def nbytes(self) -> int:
        """Return the size in bytes of the messages and publications; `note` is not counted."""
        return len(self.frame) + sum(map(len, self.publish)) + (0 if self.batch is None else self.batch.nbytes)


class BoxSize(NamedTuple):
    """The rows and bytes in a box, without those of failed attempts, and the limits for both."""

    rows: int
    nbytes: int
    limit_rows: int
    limit_bytes: int


class ClosedStep(NamedTuple):
    """How a group closed a step: by which attempt, and with which counts of messages."""

    attempt: int
    counts: bytes


class GroupProgress(NamedTuple):
    """Progress of a group. `closed` is the group's last closed step, and `open` its open step (None: there is none).

    `driver` is None if the group has no driver. `idle_ms` is the time since the last change of `closed`, `open`,
    `driver` or `until`. The group takes part in the steps from `since` on, up to the one before `until` (None: without
    end). `silent_ms` is the time since the driver's last call to the server. It is a few seconds at most while the
    driver lives and reaches the server.
    """

    closed: int
    open: int | None
    driver: Driver | None
    idle_ms: int
    since: int
    until: int | None
    silent_ms: int = 0

    @property
    def cut_off(self) -> bool:
        """Return whether the group has a driver that has died or does not reach the server."""
        return self.driver is not None and self.silent_ms > 1000 * STEP_LEASE_S


class Progress(NamedTuple):
    """Progress of all groups.

    `sealed` is the last step that all groups have closed, and `latest` the last step that some group has opened. Both
    are -1 before the first such step. `target` is the last step that may be opened (None: no end). `holds` says, for
    each reader that keeps boxes on the server, which step it has read last (see `RedisSteps.hold`). `news` is a
    position in the stream of news. `wait_for` is the mode that is used now. `supervisor` is the progress of the task of
    the interceptor that closes each step after all groups (None: there is no such task). `supervised_by` is the task's
    name in texts for the user.
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

    @property
    def resting(self) -> bool:
        """Return whether no step is open: before the first step, during a pause, or after the last step of a run."""
        return self.latest <= self.sealed and all(
            group.open is None and group.closed <= self.sealed for group in self.groups.values()
        )

    def waiting_for(self) -> dict[str, int]:
        """Return the groups for which the next step waits, with the step that each of them has to close.

        If no group has to close a step, but the supervisor has to, return the supervisor's name and step instead.
        """
        found = {
            name: group.closed + 1
            for name, group in self.groups.items()
            if group.closed <= self.sealed and (group.until is None or group.closed + 1 < group.until)
        }
        if not found and self.supervisor is not None and self.sealed < self.latest:
            return {self.supervised_by: self.sealed + 1}
        return found


def box_name(mailbox: str, step: int) -> str:
    """Return the name of the box that has the messages of a mailbox for a step.

    NOTES and PUBLICATIONS stand for the mailboxes of log notes and of messages on channels that no agent owns.
    """
    return f"{mailbox}@{step}"


def counted(frames: Sequence[BoxFrame], covers: Sequence[Cover]) -> list[BoxFrame] | None:
    """Return the frames of a box that belong to committed attempts. The `covers` list these attempts.

    Return None if rows are missing. Then the box must be read again from its start.
    """
    left = {StepTag(cover.group, cover.sent, cover.attempt): cover.rows for cover in covers}
    found = [frame for frame in frames if frame.tag in left]
    for frame in found:
        left[frame.tag] -= frame.rows
    return None if any(left.values()) else found


def box_in_words(box: str) -> str:
    """Return words for the messages in a box: for `north@3`, "messages of step 3 in mailbox 'north'"."""
    mailbox, _, step = box.rpartition("@")
    return f"messages of step {step} in mailbox {mailbox!r}"


def overtaken(group: str, attempt: int) -> Fenced:
    """Build the error for a driver whose group a later driver has taken over."""
    return Fenced(
        f"this task can no longer run the steps of group {group!r}, because another task or process has taken them "
        "over, or the group was given up: end this task. Nothing that it did in the open step is committed",
        name=group,
        epoch=attempt,
    )


def no_steps(group: str) -> UnknownName:
    """Build the error for a group that has not joined the steps."""
    text = f"group {group!r} has not joined the steps of its experiment: call group.steps() first"
    return UnknownName(text, kind="group", value=group)


def without_steps(exp_id: str) -> ConfigError:
    """Build the error for an experiment without steps."""
    return ConfigError(f"experiment {exp_id!r} has no steps: start it with steps=Steps()")
