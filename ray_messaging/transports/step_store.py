"""Port to the steps of an experiment: barrier, boxes, and the drivers of groups.

The protocol:

1. A group joins. It counts from a step that nobody has opened, so that the senders of earlier steps need not know it.
2. A driver takes the group and gets an attempt number. A later driver gets a higher one; the earlier one is fenced.
3. `open` opens the step after the last one that the group closed. It waits for the barrier, for the window (how far a
   group may be ahead of the slowest), for holds (readers of sealed boxes, as the event log), and while paused.
4. What an attempt sends in step s goes to boxes: `M@v` holds what mailbox M reads in step v, s < v <= s + horizon.
   Each frame has a tag: group, s, attempt. The server refuses frames of an attempt that does not have the step open.
5. `close` writes at once: the cover of each box that the attempt wrote to (attempt and rows), the counts, the state.
   A frame that no cover names does not exist. What a dead attempt wrote is never covered.
6. A step is sealed when all groups that count in it have closed it. Its boxes are deleted then, up to the holds.
7. When a group can open step v, its box is final. Reading changes nothing, so any process may read it again.
8. A frame from outside (a send to a stepped mailbox by its plain name) gets the step after the latest open one.
9. A group that must wait gets a place in the news; `wait` returns when there is news after it.
10. Every call may be repeated, also late: it has its effect once, and a fenced driver's call has none.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from ray_messaging.common.limits import BOX_BYTES, BOX_ROWS
from ray_messaging.transports.transport import SendReply, SendRequest

OUTSIDE = ""  # the group of frames from outside
NOTES = ":log"  # the box of notes for the event log; users' mailboxes have no colon
PUBLICATIONS = ":out"  # the box of messages for plain channels


class WaitFor(StrEnum):
    """Groups that a group waits for before it opens a step."""

    ALL = "all"
    SENDERS = "senders"  # those that it hears


class StepSettings(NamedTuple):
    """Settings of an experiment's steps; they stay for as long as the experiment."""

    seed: int = 0
    wait_for: WaitFor = WaitFor.ALL
    groups: int = 0  # step 0 waits until so many have joined
    window: int = 8  # how many steps a group may be ahead of the slowest
    horizon: int = 64  # how many steps ahead a message may be sent
    lag: int = 4  # how many steps a hold may be behind
    box_rows: int = BOX_ROWS
    box_bytes: int = BOX_BYTES


class Driver(NamedTuple):
    """Task that drives a group; `start` counts how often it was started, so that a restarted task follows itself."""

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
    """An open step, and all that counts of the group's box for it."""

    step: int
    covers: tuple[Cover, ...]


class Reason(StrEnum):
    """Reason why a step cannot be opened yet."""

    GROUPS = "groups"  # some have not closed an earlier step
    MISSING = "missing"  # step 0: fewer groups have joined than the settings say
    WINDOW = "window"  # some are too far behind
    HOLD = "hold"  # a hold is too far behind
    PAUSED = "paused"


class Waiting(NamedTuple):
    """A step that cannot be opened yet: a few names of what it waits for, their total, and a place in the news."""

    step: int
    reason: Reason
    names: tuple[str, ...]
    total: int
    news: str


class Done(NamedTuple):
    """A step that the group has closed, or in which it does not count any more; `closed` is its last closed one."""

    closed: int


class Closing(NamedTuple):
    """What closes a step: rows that the attempt wrote to mailboxes' boxes, as acknowledged, the counts and the state.

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
    """What a group left at a close: the attempt that counts, and its counts."""

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
    """

    sealed: int
    latest: int
    target: int | None
    groups: dict[str, GroupProgress]
    holds: dict[str, int]
    news: str

    def waiting_for(self) -> dict[str, int]:
        """Return the groups that hold up the next seal, with the step that each has to close."""
        return {
            name: group.closed + 1
            for name, group in self.groups.items()
            if group.closed <= self.sealed and (group.until is None or group.closed + 1 < group.until)
        }


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


class StepStore(Protocol):
    """Steps of one experiment on its server."""

    async def begin(self, settings: StepSettings) -> StepSettings:
        """Set the experiment's steps up, unless they are; return the settings that hold."""

    # -- groups ---------------------------------------------------------------------------------------------------

    async def join(self, group: str, hears: Sequence[str] | None = None) -> int:
        """Make a group a member, and its mailbox of the same name stepped; return the first step in which it counts.

        Args: hears are the groups that may send to it; None: all. Call it again where its mailbox was made anew.
        """

    async def leave(self, group: str, *, at_once: bool = False) -> int:
        """End a membership; return the first step in which the group does not count.

        Args: at_once also gives up its open step, for a group whose process is gone for good.
        """

    async def take(self, group: str, driver: Driver, lease_s: float, over: str = "") -> Taken | Driven:
        """Take a group to drive it. A driver that has it gets its attempt again, a later start of it the next one.

        Args: over is the lease of another driver that has not changed for its time.
        Raises: Fenced where a later start of the driver has the group; UnknownName where no such group has joined.
        """

    async def renew(self, group: str, attempt: int) -> None:
        """Change the lease of the driver. Opening and closing a step do so, too. Raises Fenced."""

    async def let_go(self, group: str, attempt: int) -> None:
        """Give a group up, so that the next driver need not wait; an open step stays uncovered. Never raises Fenced."""

    # -- a step ---------------------------------------------------------------------------------------------------

    async def open(self, group: str, attempt: int, step: int) -> Opened | Waiting | Done:
        """Open a step. Raises Fenced; ValueError for a step beyond the next one."""

    async def send(self, request: SendRequest, tag: StepTag) -> SendReply:
        """Write frames to boxes (the mailboxes' names), atomically, as `Transport.send` does with these differences.

        A frame's number counts from 1 for each attempt, sender and box. The sender's epoch and the directory's version
        are not looked at. Notes and publications go to the boxes NOTES and PUBLICATIONS of the step after the tag's.
        A full box is TOO_LARGE at once; one that is not of a later step within the horizon is GONE. The status is
        STEP_OVER if the attempt does not have the step open: then nothing is written.
        """

    async def close(
        self, group: str, attempt: int, step: int, closing: Closing, *, go_on: bool = False
    ) -> Committed | Refused:
        """Close a step: all that its attempt sent counts from now on. With `go_on` the next one is opened, too.

        Raises: Fenced, and nothing has happened.
        """

    async def wait(self, news: str, block_s: float) -> str:
        """Return the newest place in the news, once there is one after `news`; at the latest after `block_s`."""

    # -- boxes ----------------------------------------------------------------------------------------------------

    async def read_box(self, box: str, after: str = "0-0", count: int = 64) -> list[BoxFrame]:
        """Return up to `count` frames of a box after an entry, those of all attempts: `counted` chooses."""

    async def covers(self, box: str) -> list[Cover]:
        """Return all that counts of a box so far; it is final once the step before is sealed."""

    async def boxes(self, step: int) -> list[str]:
        """Return the names of the boxes for a step."""

    async def box_size(self, box: str) -> BoxSize:
        """Return the size of a box, and its limits."""

    async def closed_step(self, step: int) -> Mapping[str, ClosedStep]:
        """Return what each group left at the close of a step; it is kept for as long as the horizon."""

    # -- control --------------------------------------------------------------------------------------------------

    async def hold(self, name: str, through: int) -> None:
        """Keep the boxes of later steps than `through` until this name handles them; a lower step changes nothing."""

    async def drop_hold(self, name: str) -> None:
        """End a hold."""

    async def pause(self) -> int:
        """Open no step that nobody has opened yet; return the last one that may be."""

    async def resume(self, target: int | None = None) -> None:
        """Open steps up to a target from now on (None: all)."""

    async def progress(self) -> Progress:
        """Return the progress of all groups."""
