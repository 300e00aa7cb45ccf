"""Values that are passed to the store of steps and returned by it, and its errors."""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from ray_messaging.config import Steps
from ray_messaging.default_limits_and_leases import BOX_BYTES, BOX_ROWS, LAG_BYTES, STEP_LEASE_S
from ray_messaging.errors import ConfigError, Fenced, UnknownName

OUTSIDE = ""  # stands for the group in frames from outside of the steps
SUPERVISOR = ":rules"  # the member that closes each step after all groups; lists of groups do not contain it
NOTES = ":log"  # the box of notes for the event log; users' mailboxes have no colon
PUBLICATIONS = ":out"  # the box of messages for plain channels
PLACES = ":places"  # the box of new positions, which all groups read
STANDSTILL = -(2**31)  # a hold at this position is so far behind that no step begins, even after `resume`
RULE_CHANGE, CTRL_C = "a change of the rules", "Ctrl-C"  # names of holds with position STANDSTILL
CHECKPOINT = "a checkpoint"  # the name of a hold that lets no step begin after its position
ASKER = "+"  # prefix of an outside asker's mailbox; when a step is sealed, the mailbox gets the answers in its boxes


class WaitFor(StrEnum):
    """The groups for which a group waits before it opens a step: all groups, or only groups that may send to it."""

    ALL = "all"
    SENDERS = "senders"


class StepSettings(NamedTuple):
    """Settings of an experiment's steps, which never change."""

    seed: int = 0
    wait_for: WaitFor = WaitFor.ALL
    groups: int = 0  # step 0 waits until this number of groups has joined
    window: int = 8  # how many steps a group may be ahead of the slowest
    horizon: int = 64  # how many steps ahead a message may be sent
    # How many steps a hold may be behind; at most `horizon`, because a step's counts are kept for `horizon` steps.
    lag: int = 64
    lag_large: int = 4  # replaces `lag` while the boxes that the hold keeps have more than `lag_bytes`
    lag_bytes: int = LAG_BYTES
    digest: bool = False  # whether groups store digests of what they send
    box_rows: int = BOX_ROWS
    box_bytes: int = BOX_BYTES

    @classmethod
    def of(cls, steps: Steps) -> "StepSettings":
        """Return the settings that a user gave, and our defaults for the rest."""
        # That agents wait for their neighbours changes when calls are made, and nothing of the steps.
        wait_for = WaitFor.ALL if steps.wait_for == "neighbours" else WaitFor(steps.wait_for)
        return cls(steps.seed, wait_for, groups=steps.groups or 0, digest=steps.digest)


class Driver(NamedTuple):
    """Task that drives a group, with a number `start`, which rises each time that the task begins again.

    A driver with the same `start` gets the same attempt number again, and the server then treats a frame with a known
    number as a repeated frame. So a task that begins again needs a higher `start`.
    """

    task: str
    start: int = 0


class DrivenGroup(NamedTuple):
    """A group that we drive now: our attempt number, its last closed step (-1: none), its state after that step.

    `until` is the first step in which the group is no longer a member (None: it stays).
    """

    attempt: int
    closed: int
    state: bytes | None
    until: int | None


class Driven(NamedTuple):
    """A group that another driver has. `lease` changes with each sign of life, at least every `lease_s` seconds.

    A caller that has seen the same lease for longer may call `take` with `over=lease`, to take the group.
    """

    driver: Driver
    lease: str
    lease_s: float


class Cover(NamedTuple):
    """Entry in a box's list of what counts: the rows that one attempt of a group sent in one step.

    For frames from OUTSIDE the attempt is 0.
    """

    group: str
    sent: int
    attempt: int
    rows: int


class Opened(NamedTuple):
    """An open step, and the covers of the box that the group reads in the step.

    `directory` is the directory's version when the step was opened, or a later version (-1: not known). `blocked` says
    whether rules have blocked messages of the previous step. `news` is a position in the stream of news, before the
    event that will open the next step.
    """

    step: int
    covers: tuple[Cover, ...]
    directory: int = -1
    blocked: bool = False
    news: str = ""


class Reason(StrEnum):
    """Reason why a step cannot be opened yet."""

    GROUPS = "groups"  # Some groups have not ended an earlier step.
    MISSING = "missing"  # step 0: fewer groups have joined than the settings say
    WINDOW = "window"  # Some groups are too many steps behind.
    HOLD = "hold"  # A hold, such as the event log's, is too many steps behind.
    PAUSED = "paused"


class Waiting(NamedTuple):
    """A step that cannot be opened yet: some names of groups or holds for which it waits, and how many there are.

    In the answer to a close, `names` is empty. `news` is a position in the stream of news.
    """

    step: int
    reason: Reason
    names: tuple[str, ...]
    total: int
    news: str


class BoxStart(NamedTuple):
    """The covers of a box, which list what counts, and the box's first frames."""

    covers: Sequence[Cover]
    frames: Sequence["BoxFrame"]


class News(NamedTuple):
    """News that end a wait: their position in the stream, the last step that is open to all groups, its box count.

    `directory` is the directory's version. If the wait ended without news, `directory` and `opened` are -1. `blocked`
    says whether rules have blocked messages of the step before `opened`. `start` is the beginning of the box that the
    caller named, if the box was read right after the news, otherwise None.
    """

    place: str
    opened: int = -1
    boxes: int = 0
    directory: int = -1
    blocked: bool = False
    start: BoxStart | None = None


class Done(NamedTuple):
    """Answer for a step that the group has closed already, or in which the group is no longer a member.

    `closed` is the last step that the group closed.
    """

    closed: int


class Closing(NamedTuple):
    """The facts that a group states when it closes a step. `rows` is how many rows it has written to mailboxes' boxes.

    `blocked` are the messages that rules blocked, `calls` the calls that agents remember. The store does not look into
    `blocked`, `calls`, `counts` and `series`. With `state_changed` the group's state becomes `state` (None: no state).
    """

    rows: int
    counts: bytes = b""
    state: bytes | None = None
    state_changed: bool = False
    series: bytes = b""
    blocked: bytes = b""
    calls: bytes = b""


class CollectedKind(StrEnum):
    """Kind of data that a group stores in a step: its part of the recorded series, or its agents' remembered calls."""

    SERIES = "series"
    CALLS = "calls"


class Collected(NamedTuple):
    """Data of one kind that a group has stored in one step, as a stream entry."""

    entry: str
    kind: CollectedKind
    step: int
    group: str
    data: bytes


class Committed(NamedTuple):
    """A step that is closed, the last sealed step, and the answer about the next step, if the close was to open it."""

    step: int
    sealed: int
    following: Opened | Waiting | Done | None = None


class Refused(NamedTuple):
    """A step that cannot be closed. Its attempt must end, and nothing of the attempt counts.

    There are three reasons: the server has `rows` rows, but the group stated another number; the mailboxes in `deaf`
    were declared not to hear the group; or the run's series have the shape `series`, and the group's series have
    another shape.
    """

    step: int
    rows: int
    deaf: tuple[str, ...] = ()
    series: bytes = b""


class StepTag(NamedTuple):
    """Origin of a frame in a box: its group, the step in which it was sent, and the attempt's number at that step."""

    group: str
    sent: int
    attempt: int


class BoxFrame(NamedTuple):
    """Frame in a box. For a frame from OUTSIDE, `first` is how many rows from outside the step had before this frame.

    In box NOTES, `note` belongs to the frame. In box PUBLICATIONS, `publish` has channels and data alternately.
    """

    entry: str
    tag: StepTag
    rows: int
    frame: bytes
    first: int = 0
    note: bytes | None = None
    publish: tuple[bytes, ...] = ()


class BoxSize(NamedTuple):
    """Rows and bytes of a box, without rows of attempts that have failed, and the limits of a box."""

    rows: int
    nbytes: int
    limit_rows: int
    limit_bytes: int


class ClosedStep(NamedTuple):
    """Closing of a step by a group: the number of the attempt whose messages count, and the group's counts."""

    attempt: int
    counts: bytes


class GroupProgress(NamedTuple):
    """Progress of a group: last closed step, open step (None: none), driver (None: none), ms since the last change.

    The group is a member from step `since`, and before step `until` (None: it stays). `silent_ms` is the time since the
    driver's last call to the server: a few seconds at most while the driver lives and reaches the server.
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
        """Return whether the group has a driver that does not reach the server, or has died."""
        return self.driver is not None and self.silent_ms > 1000 * STEP_LEASE_S


class Progress(NamedTuple):
    """Progress of all groups: the last `sealed` and the `latest` open step, which are -1 if there is none yet.

    `target` is the last step that may be opened (None: no end). `holds` has the last step that each hold has handled.
    `wait_for` is the current mode.
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

    @property
    def resting(self) -> bool:
        """Return whether no step is open: before the first step, in a pause, or after the last step of a run."""
        return self.latest <= self.sealed and all(
            group.open is None and group.closed <= self.sealed for group in self.groups.values()
        )

    def waiting_for(self) -> dict[str, int]:
        """Return the groups for which the next step waits, each with the step that the group has to close.

        If only the supervisor has to close the step, return its name instead.
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
    """Return the name of the box of a mailbox (or NOTES, PUBLICATIONS) for a step."""
    return f"{mailbox}@{step}"


def counted(frames: Sequence[BoxFrame], covers: Sequence[Cover]) -> list[BoxFrame] | None:
    """Return the frames of a box that count according to its covers.

    Return None if rows are missing: then read the box again from its start.
    """
    left = {StepTag(cover.group, cover.sent, cover.attempt): cover.rows for cover in covers}
    found = [frame for frame in frames if frame.tag in left]
    for frame in found:
        left[frame.tag] -= frame.rows
    return None if any(left.values()) else found


def overtaken(group: str, attempt: int) -> Fenced:
    """Build the error for a driver whose group a later driver has taken."""
    return Fenced(
        f"a later driver has group {group!r}, or this one gave it up (our attempt is {attempt}): nothing of the open "
        "step counts. End this task",
        name=group,
        epoch=attempt,
    )


def no_steps(group: str) -> UnknownName:
    """Build the error for a group that has not joined the steps."""
    return UnknownName(f"group {group!r} has not joined the steps of its experiment", kind="group", value=group)


def without_steps(exp_id: str) -> ConfigError:
    """Build the error for an experiment without steps."""
    return ConfigError(f"experiment {exp_id!r} has no steps: start it with steps=Steps()")
