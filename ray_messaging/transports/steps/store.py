"""Port to the steps of an experiment: barrier, boxes, and the drivers of groups.

The protocol:

1. A group joins. It counts from a step that nobody has opened, nor the one before: what is sent in earlier ones does
   not reach it, nor what would be read after it has left.
2. A driver takes the group and gets an attempt number. A later driver gets a higher one; the earlier one is fenced.
3. `open` opens the step after the last one that the group closed. It waits for the barrier, for the window (how far a
   group may be ahead of the slowest), for holds (readers of sealed boxes, as the event log), and while paused.
4. The frames of step s go to boxes: `M@v` holds those that mailbox M reads in step v, s < v <= s + horizon. Each frame
   has a tag: group, s, attempt. The server refuses frames of an attempt that does not have the step open.
5. `close` writes at once: the cover of each box that the attempt wrote to (attempt and rows), the counts, the state.
   A frame that no cover names does not exist. Frames of a dead attempt are never covered.
6. A step is sealed when all groups that count in it have closed it. Their messages on channels that no mailbox owns are
   published then, once. The boxes of the step are deleted, up to the holds.
7. When a group can open step v, its box is final. Reading changes nothing, so any process may read it again.
8. A frame from outside (a send to a stepped mailbox by its plain name) gets the step after the latest open one.
9. In WaitFor.SENDERS a group waits for the groups that it hears; a step that sends to one that does not hear it is not
   closed.
10. A group that must wait gets a place in the news; `wait` returns when there is news after it. Once nothing speaks
    against the step, it is open to all groups that have asked for it, and the news say so.
11. The supervisor is a member without a mailbox. It opens a step when all others have closed it; its close seals it.
    Its frames in the box of a mailbox are messages, or change those of the groups in the same step.
12. Every call may be repeated, also late: it has its effect once, and a fenced driver's call has none.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from ray_messaging.transports.steps.values import (
    BoxFrame,
    BoxSize,
    ClosedStep,
    Closing,
    Committed,
    Cover,
    Done,
    Driven,
    Driver,
    News,
    Opened,
    Progress,
    Refused,
    StepSettings,
    StepTag,
    Taken,
    WaitFor,
    Waiting,
)
from ray_messaging.transports.transport import SendReply, SendRequest


class StepStore(Protocol):
    """Steps of one experiment on its server."""

    async def settings(self) -> StepSettings | None:
        """Return the settings of the experiment's steps; None: it has no steps."""

    async def begin(self, settings: StepSettings) -> StepSettings:
        """Set the experiment's steps up, unless they are; return the settings that hold."""

    # -- groups ---------------------------------------------------------------------------------------------------

    async def join(self, group: str, *, again: bool = False) -> int:
        """Make a group a member, and its mailbox of the same name stepped; return the first step in which it counts.

        It is one the senders of which nobody has opened yet; of the SUPERVISOR the open step, else the next one.

        Args: with `again` also one that has left with its driver.
        """

    async def declare(self, hears: Mapping[str, Collection[str] | None], at_step: int | None = None) -> None:
        """Declare which groups may send to a group, besides itself (None: all), for all that it reads from a step on.

        It holds in WaitFor.SENDERS, for groups that join later, too. What holds already may be declared at any time.

        Raises: ConfigError where somebody may have sent for the step already.
        """

    async def set_wait_for(self, mode: WaitFor) -> None:
        """Set which groups a group waits for from now on, whatever the settings say."""

    async def leave(self, group: str, *, at_once: bool = False) -> int:
        """End a membership; return the first step in which the group does not count.

        Args: at_once also gives up its open step, for a group whose process is gone for good.
        """

    async def take(
        self, group: str, driver: Driver, lease_s: float, over: str = "", until: int | None = None
    ) -> Taken | Driven:
        """Take a group to drive it. A driver that has it gets its attempt again, a later start of it the next one.

        Args: over is the lease of another driver that has not changed for its time; until is the first step in which
        the group does not count any more (None: it stays, also where an earlier driver said otherwise).
        Raises: Fenced where a later start of the driver has the group; UnknownName where no such group has joined.
        """

    async def renew(self, group: str, attempt: int) -> None:
        """Change the lease of the driver. Opening and closing a step do so, too. Raises Fenced."""

    async def let_go(self, group: str, attempt: int) -> None:
        """Give a group up, so that the next driver need not wait; an open step stays uncovered. Never raises Fenced."""

    async def state(self, group: str) -> bytes | None:
        """Return the state that the group's last committed step left; None: there is none. Raises UnknownName."""

    # -- a step ---------------------------------------------------------------------------------------------------

    async def open(self, group: str, attempt: int, step: int) -> Opened | Waiting | Done:
        """Open a step. Raises Fenced, also for a step beyond the next one."""

    async def send(self, request: SendRequest, tag: StepTag) -> SendReply:
        """Write frames to boxes (the mailboxes' names), atomically, as `Transport.send` does with these differences.

        A frame's number counts from 1 for each attempt, sender and box. The sender's epoch and the directory's version
        are not looked at. Notes and publications go to the boxes NOTES and PUBLICATIONS of the step after the tag's.
        A full box is TOO_LARGE at once. GONE are boxes that are not of a later step within the horizon, or of a mailbox
        whose group does not count in the box's step, or did not in the step after the tag's. The status is
        STEP_OVER if the attempt does not have the step open: then nothing is written.
        """

    async def close(
        self, group: str, attempt: int, step: int, closing: Closing, *, go_on: bool = False
    ) -> Committed | Refused:
        """Close a step: all that its attempt sent counts from now on. With `go_on` the next one is opened, too.

        Raises: Fenced, and nothing has happened.
        """

    async def commit(
        self, request: SendRequest, tag: StepTag, closing: Closing, *, go_on: bool = False
    ) -> Committed | Refused | None:
        """Write all frames of a step, and close it, in one call; the frames' numbers begin at 1.

        None: some frame cannot be written, or the attempt does not have the step open, and nothing has happened. The
        calls `send` and `close` then say why.

        Raises: Fenced, and nothing has happened.
        """

    async def remember(self, group: str, attempt: int, step: int, results: Mapping[str, bytes]) -> bool:
        """Keep results of calls until the step is closed: later attempts find what this one has kept.

        Returns whether the attempt has the step open; else nothing is kept.
        """

    async def remembered(self, group: str, step: int) -> dict[str, bytes]:
        """Return the results that all attempts at a group's open step have kept."""

    async def wait(self, news: str, block_s: float, *, box: str = "", count: int = 0) -> News:
        """Return the newest of the news, once there are some after a place; at the latest after `block_s`.

        Args: box may be read with the news, as `open_box` reads it ("": none).
        """

    # -- boxes ----------------------------------------------------------------------------------------------------

    async def read_box(self, box: str, after: str = "0-0", count: int = 64) -> list[BoxFrame]:
        """Return up to `count` frames of a box after an entry, those of all attempts: `counted` chooses."""

    async def open_box(self, box: str, count: int) -> tuple[list[Cover], list[BoxFrame]]:
        """Return all that counts of a box so far, and its first `count` frames, as `covers` and `read_box` do."""

    async def covers(self, box: str) -> list[Cover]:
        """Return all that counts of a box so far; it is final once the step before is sealed."""

    async def boxes(self, step: int) -> list[str]:
        """Return the names of the boxes for a step."""

    async def covered_boxes(self, first: int, last: int) -> Mapping[str, Sequence[Cover]]:
        """Return what counts so far of each box for the steps from `first` to `last`; see `covers`."""

    async def box_size(self, box: str) -> BoxSize:
        """Return the size of a box, and its limits."""

    async def closed_step(self, step: int) -> Mapping[str, ClosedStep]:
        """Return the closing of a step by each group; it is kept for as long as the horizon."""

    # -- control --------------------------------------------------------------------------------------------------

    async def hold(self, name: str, through: int) -> None:
        """Keep the boxes of later steps than `through` until this name handles them; a lower step changes nothing.

        At a STANDSTILL no step begins. Each call wakes those who wait.
        """

    async def drop_hold(self, name: str) -> None:
        """End a hold."""

    async def pause(self) -> int:
        """Open no step that nobody has opened yet; return the last one that may be."""

    async def resume(self, target: int | None = None) -> None:
        """Open steps up to a target from now on (None: all)."""

    async def progress(self) -> Progress:
        """Return the progress of all groups."""
