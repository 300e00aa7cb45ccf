"""Steps of one experiment in memory: its members and their boxes, as the scripts of steps keep them on Redis."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from ray_messaging.errors import Fenced
from ray_messaging.transports.steps.errors import overtaken, unknown_group
from ray_messaging.transports.steps.values import (
    ASKER,
    OUTSIDE,
    PUBLICATIONS,
    SUPERVISOR,
    BoxFrame,
    ClosedStep,
    Cover,
    Driver,
    Reason,
    StepSettings,
    StepTag,
    WaitFor,
    Waiting,
    box_name,
)

_NAMES = 16  # in the answer to a driver that must wait


class Sealed(NamedTuple):
    """What goes out with a seal: channels and data to publish; answers, with the mailboxes outside of the steps."""

    publications: list[tuple[str, bytes]]
    answers: list[tuple[str, BoxFrame]]


@dataclass
class Box:
    """Frames that one mailbox reads in one step; `rows` and `nbytes` are without those of dead attempts."""

    step: int
    frames: list[BoxFrame] = field(default_factory=list)
    rows: int = 0
    nbytes: int = 0
    covers: dict[tuple[str, int], Cover] = field(default_factory=dict)


@dataclass
class Member:
    """A group that has joined. `numbers` are the last ones by sender and box, `sent` rows and bytes by box."""

    since: int
    closed: int
    until: int | None = None
    asked: int | None = None  # the step that its driver has asked for
    ahead: int | None = None  # a step that is open to it before it is to all
    ending: bool = False  # `until` is there because its driver leaves then
    attempt: int = 0
    driver: Driver | None = None
    lease_s: float = 0.0
    beat: int = 0
    changed: float = field(default_factory=time.monotonic)
    state: bytes | None = None
    numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    sent: dict[str, tuple[int, int]] = field(default_factory=dict)
    results: dict[str, bytes] = field(default_factory=dict)  # of calls in the step after `closed`
    left: dict[int, bytes | None] = field(default_factory=dict)  # states, by the step from which agents are elsewhere

    @property
    def lease(self) -> str:
        """Return the lease as it stands."""
        return f"{self.attempt}:{self.beat}"

    @property
    def counts(self) -> bool:
        """Tell whether it has steps to close."""
        return self.until is None or self.closed + 1 < self.until

    def keep_left_state(self, step: int, sealed: int) -> None:
        """Keep the state of before a step, which is being closed, where agents have left the group from it on."""
        self.left = {since: state for since, state in self.left.items() if since > sealed}
        if step in self.left:
            self.left[step] = self.state

    def state_before(self, step: int) -> bytes | None:
        """Return the state that the last step before another one left."""
        return self.left[step] if step in self.left and self.closed >= step else self.state

    def fence(self, group: str, attempt: int) -> Fenced | None:
        """Return the error of an attempt that does not have the group."""
        if self.attempt == attempt:
            return None
        return overtaken(group, attempt) if self.attempt > attempt else unknown_group(group, attempt)


@dataclass
class StepData:
    """Steps of one experiment; without settings it has none. `hears` are groups by group and first step (None: all)."""

    settings: StepSettings | None = None
    wait_for: WaitFor = WaitFor.ALL
    sealed: int = -1
    latest: int = -1
    asked: int = -1  # the last step that some group has asked for
    opened: int = -1  # the last step that is open to all groups that ask for it
    opened_at: float = 0.0
    target: int | None = None
    dropped: int = -1
    joined: int = 0
    entry: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    hears: dict[str, dict[int, frozenset[str] | None]] = field(default_factory=dict)
    boxes: dict[str, Box] = field(default_factory=dict)
    records: defaultdict[int, dict[str, ClosedStep]] = field(default_factory=lambda: defaultdict(dict))
    outside: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    holds: dict[str, int] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)  # bytes of the boxes for each step, once they are final
    news: int = 0
    told: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def given(self) -> StepSettings:
        """Return the settings of an experiment that has steps."""
        assert self.settings is not None
        return self.settings

    def tell(self) -> None:
        """Wake those that wait for news."""
        self.news += 1
        self.told.set()
        self.told = asyncio.Event()

    def owned(self, group: str, attempt: int) -> Member:
        """Return a group that this attempt has; raise Fenced."""
        member = self.members.get(group)
        fenced = unknown_group(group, attempt) if member is None else member.fence(group, attempt)
        if member is None or fenced is not None:
            raise fenced or unknown_group(group, attempt)
        return member

    # -- boxes ----------------------------------------------------------------------------------------------------

    def takes(self, held: tuple[int, int], rows: int, nbytes: int) -> bool:
        """Tell whether a box with so many rows and bytes takes so many more."""
        return held[0] + rows <= self.given.box_rows and held[1] + nbytes <= self.given.box_bytes

    def size_of(self, box: str) -> tuple[int, int]:
        """Return the rows and bytes of a box."""
        found = self.boxes.get(box)
        return (found.rows, found.nbytes) if found else (0, 0)

    def put(self, box: str, frame: BoxFrame, nbytes: int) -> Box:
        """Write a frame into a box."""
        found = self.boxes.setdefault(box, Box(int(box.rpartition("@")[2])))
        self.entry += 1
        found.frames.append(frame._replace(entry=f"{self.entry}-0"))
        found.rows += frame.rows
        found.nbytes += nbytes
        return found

    def reads(self, mailbox: str, sent: int, step: int) -> bool:
        """Tell whether a group reads in a step what is sent to it in another one; it does so once it has joined."""
        member = self.members.get(mailbox)
        return member is not None and sent + 1 >= member.since and (member.until is None or step < member.until)

    def next_box(self, mailbox: str) -> str | None:
        """Return the box for frames from outside: nobody has opened its step yet. None: its group has left."""
        member = self.members[mailbox]
        step = max(self.latest + 1, member.since)
        return None if member.until is not None and step >= member.until else box_name(mailbox, step)

    def given_step(self, mailbox: str) -> int | None:
        """Return the step that a message from outside is given, also to no box; None: there are no steps."""
        if self.settings is None:
            return None
        box = self.next_box(mailbox) if mailbox in self.members else None
        return self.latest + 1 if box is None else int(box.rpartition("@")[2])

    def put_from_outside(self, mailbox: str, rows: int, frame: bytes) -> None:
        """Write a frame from outside: it counts at once."""
        name = self.next_box(mailbox)
        assert name is not None
        sent = int(name.rpartition("@")[2]) - 1
        tag = StepTag(OUTSIDE, sent, 0)
        box = self.put(name, BoxFrame("", tag, rows, frame, self.outside[sent]), len(frame))
        self.outside[sent] += rows
        before = box.covers.get((OUTSIDE, sent))
        box.covers[OUTSIDE, sent] = Cover(*tag, rows + (before.rows if before else 0))

    def abandon(self, member: Member) -> None:
        """Give up the open step of a group: the frames of its attempt count nowhere, nor against a limit."""
        for name, (rows, nbytes) in member.sent.items():
            if (box := self.boxes.get(name)) is not None:
                box.rows -= rows
                box.nbytes -= nbytes
        member.asked = member.ahead = None
        member.sent.clear()
        member.numbers.clear()

    # -- the barrier ----------------------------------------------------------------------------------------------

    def heard(self, group: str, step: int) -> frozenset[str] | None:
        """Return the groups that a group waits for in a step; None: all."""
        return None if self.wait_for == WaitFor.ALL else self.declared(group, step)

    def declared(self, group: str, step: int) -> frozenset[str] | None:
        """Return the groups that a group hears in a step; None: all."""
        found = self.hears.get(group, {})
        return found[max(begun)] if (begun := [first for first in found if first <= step]) else None

    def declare(self, group: str, senders: frozenset[str] | None, at: int) -> None:
        """Have a group hear these groups from a step on."""
        kept = {first: old for first, old in self.hears.get(group, {}).items() if first < at}
        needed = max((first for first in kept if first <= self.sealed + 1), default=0)
        self.hears[group] = {first: old for first, old in kept.items() if first >= needed} | {at: senders}

    def widen(self, source: str, target: str, since: int) -> None:
        """Have a group hear, from a step on, all that another one hears, and itself be heard where that one is."""
        mine = self.declared(source, since)

        def wider(group: str, senders: frozenset[str] | None) -> frozenset[str] | None:
            if group == target:
                return None if senders is None or mine is None else senders | mine | {source}
            return senders if senders is None or source not in senders else senders | {target}

        for group, declared in self.hears.items():
            current = [first for first in declared if first <= since]
            now = {since: wider(group, declared[max(current)])} if current else {}
            later = {first: wider(group, senders) for first, senders in declared.items() if first > since}
            before = {first: senders for first, senders in declared.items() if first < since}
            self.hears[group] = before | now | later

    def open_of(self, member: Member) -> int | None:
        """Return the step that a group has open; None: it has none, though it may have asked for one."""
        step = member.asked
        return step if step is not None and (step <= self.opened or step == member.ahead) else None

    def release(self) -> None:
        """Open the step after the last sealed one to all groups, once one asks for it and nothing speaks against it."""
        step = self.sealed + 1
        if self.opened < step <= self.asked and not self._shut(step) and not self._late_holds(step):
            self.opened, self.opened_at = step, time.monotonic()
            self.latest = max(self.latest, step)

    def _shut(self, step: int) -> Waiting | None:
        """Return what keeps all groups from opening a step."""
        if step == 0 and self.joined < self.given.groups:
            return self.waiting(step, Reason.MISSING, [], self.given.groups - self.joined)
        if self.target is not None and step > self.target:
            return self.waiting(step, Reason.PAUSED, [])
        return None

    def _late_holds(self, step: int) -> list[str]:
        return [name for name, through in self.holds.items() if step - through > self._most_lag]

    def obstacle(self, group: str, step: int) -> Waiting | None:
        """Return the reason against opening a step; None: it can be opened."""
        settings = self.given
        if shut := self._shut(step):
            return shut
        if late := self._behind(step - 2, self.heard(group, step)):
            return self.waiting(step, Reason.GROUPS, late)
        if step > self.sealed + settings.window:
            return self.waiting(step, Reason.WINDOW, self._behind(step - settings.window - 1, None))
        if late := self._late_holds(step):
            return self.waiting(step, Reason.HOLD, late)
        return None

    def unfinished(self, step: int) -> Waiting | None:
        """Return the reason against the supervisor's step: it begins when all others have closed it."""
        late = [name for name in self._behind(step - 1, None) if name != SUPERVISOR]
        return self.waiting(step, Reason.GROUPS, late) if late or step > self.latest else None

    @property
    def _most_lag(self) -> int:
        """Return how many steps a hold may be behind."""
        large = sum(self.kept.values()) > self.given.lag_bytes
        return min(self.given.lag, self.given.lag_large) if large else self.given.lag

    def _behind(self, closed: int, among: frozenset[str] | None) -> list[str]:
        return [
            name
            for name, member in self.members.items()
            if member.counts and member.closed <= closed and (among is None or name in among)
        ]

    def waiting(self, step: int, reason: Reason, names: list[str], total: int | None = None) -> Waiting:
        """Return the answer to a driver that must wait."""
        total = len(names) if total is None else total
        return Waiting(step, reason, tuple(names[:_NAMES]), total, f"{self.news}-0")

    def seal(self) -> Sealed:
        """Seal the steps that all groups have closed by now; return what goes out of the steps with that."""
        settings = self.given
        sealed = min((member.closed for member in self.members.values() if member.counts), default=self.latest)
        others = [member.closed for name, member in self.members.items() if member.counts and name != SUPERVISOR]
        outgoing = Sealed([], [])
        if sealed > self.sealed:
            for step in range(self.sealed + 1, sealed + 1):
                outgoing.publications.extend(self._publications(step))
                outgoing.answers.extend(self._answers(step))
                if self.holds:
                    self.kept[step + 1] = sum(box.nbytes for box in self.boxes.values() if box.step == step + 1)
            self.sealed = sealed
            for step in [step for step in self.records if step < sealed - settings.horizon]:
                del self.records[step]
            self.drop()
            self.release()
            self.tell()
        elif self.wait_for == WaitFor.SENDERS or min(others, default=self.latest) > self.sealed:
            self.tell()  # perhaps the supervisor is the only one that the step waits for
        return outgoing

    def _publications(self, step: int) -> list[tuple[str, bytes]]:
        """Return what counts of the publications that were sent in a step."""
        box = self.boxes.get(box_name(PUBLICATIONS, step + 1))
        covered = {(cover.group, cover.attempt) for cover in box.covers.values()} if box else set()
        frames = [frame for frame in box.frames if (frame.tag.group, frame.tag.attempt) in covered] if box else []
        parts = [part for frame in frames for part in zip(frame.publish[::2], frame.publish[1::2], strict=True)]
        return [(channel.decode(), data) for channel, data in parts]

    def _answers(self, step: int) -> Iterator[tuple[str, BoxFrame]]:
        """Yield what counts of the answers that mailboxes outside of the steps get at the end of a step."""
        for name, box in self.boxes.items():
            if name.startswith(ASKER) and box.step == step + 1:
                covered = {StepTag(cover.group, cover.sent, cover.attempt) for cover in box.covers.values()}
                for frame in box.frames:
                    if frame.tag in covered:
                        yield name.rpartition("@")[0].removeprefix(ASKER), frame

    def drop(self) -> None:
        """Delete the boxes of steps that are sealed, and handled by all holds."""
        self.dropped = max(self.dropped, min([self.sealed, *self.holds.values()]))
        for name in [name for name, box in self.boxes.items() if box.step <= self.dropped]:
            del self.boxes[name]
        self.kept = {step: nbytes for step, nbytes in self.kept.items() if step > self.dropped}
