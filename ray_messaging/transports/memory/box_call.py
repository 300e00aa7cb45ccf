"""One call that writes frames of an open step on a server in memory, as send_to_boxes.lua on Redis."""

import re
from dataclasses import dataclass, field

from ray_messaging.transports.memory.step_data import Member, StepData
from ray_messaging.transports.steps.values import ASKER, NOTES, PLACES, PUBLICATIONS, BoxFrame, StepTag, box_name
from ray_messaging.transports.transport import FrameFate, FrameWrite, SendReply, SendRequest, SendStatus

_BOX = re.compile(r"(?:[^:@]+|:places)@([0-9]+)")
Size = tuple[int, int]  # rows and bytes


@dataclass
class BoxCall:
    """One call: its frames are decided one by one, and then written. Nothing in between awaits.

    `planned` has the last accepted number by name, `sizes` the size of each box with all accepted frames.
    """

    data: StepData
    member: Member
    request: SendRequest
    tag: StepTag
    status: SendStatus
    planned: dict[str, int] = field(default_factory=dict)
    refused: dict[str, FrameFate] = field(default_factory=dict)
    sizes: dict[str, Size] = field(default_factory=dict)

    def run_whole(self) -> bool:
        """Write all, or nothing; return whether all is written."""
        fates = {self._decide(write) for write in self.request.writes}
        if self.status is not SendStatus.OK or not fates <= {FrameFate.WRITTEN, FrameFate.DUPLICATE}:
            return False
        self.planned, self.sizes = {}, {}
        self.run()
        return True

    def run(self) -> SendReply:
        """Write all that fits."""
        fates = [self._decide(write) for write in self.request.writes]
        for fate, write in zip(fates, self.request.writes, strict=True):
            if fate is FrameFate.WRITTEN:
                self._write(write)
        return SendReply(self.status, fates)

    def _decide(self, write: FrameWrite) -> FrameFate:
        name = write.mailbox
        last = self.member.numbers.get((self.request.sender, name), 0)
        if write.seq <= last:
            return FrameFate.DUPLICATE
        if self.status is not SendStatus.OK:
            return FrameFate.FULL
        fate = self.refused.get(name)
        if fate is None:
            fate = self._fits(write) if write.seq == self.planned.get(name, last) + 1 else FrameFate.GAP
        if fate is FrameFate.WRITTEN:
            self.planned[name] = write.seq
        else:
            self.refused[name] = fate
        return fate

    def _fits(self, write: FrameWrite) -> FrameFate:
        """Return whether a write fits behind those that are accepted, and count it."""
        sent, taken = self.tag.sent, dict[str, Size]()
        if write.mailbox not in {"", NOTES}:
            named = _BOX.fullmatch(write.mailbox)
            if named is None or not sent < int(named[1]) <= sent + self.data.given.horizon:
                return FrameFate.GONE
            if not write.mailbox.startswith((ASKER, PLACES)) and not self.data.reads(
                write.mailbox.rpartition("@")[0], sent, int(named[1])
            ):
                return FrameFate.GONE
        for box, frame, nbytes in _parts(write, self.tag):
            held = taken.get(box) or self.sizes.get(box) or self.data.size_of(box)
            if not self.data.takes(held, frame.rows, nbytes):
                return FrameFate.TOO_LARGE
            taken[box] = held[0] + frame.rows, held[1] + nbytes
        self.sizes |= taken
        return FrameFate.WRITTEN

    def _write(self, write: FrameWrite) -> None:
        for box, frame, nbytes in _parts(write, self.tag):
            self.data.put(box, frame, nbytes)
            rows, held = self.member.sent.get(box, (0, 0))
            self.member.sent[box] = rows + frame.rows, held + nbytes
        self.member.numbers[self.request.sender, write.mailbox] = write.seq


def _parts(write: FrameWrite, tag: StepTag) -> list[tuple[str, BoxFrame, int]]:
    """Return the parts of a write: box, frame without an entry, and bytes of each."""
    parts, noted = [], write.noted
    if write.mailbox not in {"", NOTES}:
        parts.append((write.mailbox, BoxFrame("", tag, write.rows, write.frame), len(write.frame)))
    if write.publish:
        flat = tuple(part for channel, data in write.publish for part in (channel.encode(), data))
        frame = BoxFrame("", tag, len(write.publish), b"", publish=flat)
        parts.append((box_name(PUBLICATIONS, tag.sent + 1), frame, sum(map(len, flat))))
    if noted is not None:
        frame = BoxFrame("", tag, noted.rows, noted.frame, note=noted.note)
        parts.append((box_name(NOTES, tag.sent + 1), frame, len(noted.frame) + len(noted.note)))
    return parts
