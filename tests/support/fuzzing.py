"""Fuzz targets, with generators of inputs that get far inside.

A target's `check` takes one input and returns whether it was decoded. It returns False for an input that was refused
with the right error; any other error is a finding. Every column of a decoded input is read.
"""

import asyncio
from random import Random
from struct import pack, unpack_from

import msgspec
import numpy as np

from ray_messaging.addressing.channels import check_name
from ray_messaging.addressing.directory import Claim, Directory, MailboxRecord, decode_record, encode_record
from ray_messaging.errors import FrameError
from ray_messaging.eventlog.writing.log_columns import LoggedPart, record_batch
from ray_messaging.interception.interceptor.lane_server import LaneServer, _LanePeer
from ray_messaging.interception.lane import JUDGE, SNAPSHOT, WAIT, LaneClient
from ray_messaging.interception.rule_snapshot import (
    AllowGraphSnapshot,
    BlackListSnapshot,
    RuleSnapshot,
    SnapshotRequest,
    decode_snapshot,
    decode_snapshot_request,
    encode_snapshot,
)
from ray_messaging.interception.verdicts import BatchVerdict, decode_verdicts
from ray_messaging.message import Message
from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.extension import AudiencePairs, Extension
from ray_messaging.model.message_ids import MessageIdColumn
from ray_messaging.model.typed.input import columns
from ray_messaging.model.typed.typed_table import TypedColumns
from ray_messaging.wire.frames import decode, encode
from ray_messaging.wire.notes import Before, LogNote, RuleNote, decode_log_note, encode_log_note
from support.batches import batch_to
from support.frames import receive, sealed

PREFIX = 12
NUMBERS = [0, 1, -1, 2, 3, 255, 65535, 2**31, 2**32 - 1, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**63)]
TEXTS = ["", "a", "agent-chat", ":plain", "-7", "\0", "é", "x" * 300, "exps:", "{", "*"]
BLOBS = [b"", b"\0", b"\0\0\0\0", b"\1\0\0\0\2\0\0\0", b"\xff" * 4, b"\xff" * 7]
DEEP = msgspec.msgpack.decode(b"\x91" * 40 + b"\xc0")
OTHERS = [None, True, 1.5, float("nan"), float("inf"), [], [""], ["a", "b"], [["a", b"\0\0\0\0"]], {}, {"a": 1}, DEEP]
_INTERESTING = [*NUMBERS, *TEXTS, *BLOBS, *OTHERS]
_ALIKE = {int: NUMBERS, str: TEXTS, bytes: BLOBS, float: [0.0, -1.0, 1e300, float("nan"), float("inf")]}
_PREFIXES = [b"", b"\0", b"\x91" * 3000, b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xa4\xff\xfe\xfd\xfc"]
LOGGED = 16  # of so many decoded frames one is turned into the log's rows, which takes as long as all else


def a_value(random, like=None):
    """Return a value of which somebody did not think; mostly one of the same type."""
    found = _ALIKE.get(type(like), _INTERESTING) if random.getrandbits(2) else _INTERESTING
    return found[random.getrandbits(16) % len(found)]


def scribble(random, data):
    """Return bytes with some of them changed, cut out, repeated or put in."""
    made = bytearray(data)
    for _ in range(1 + random.getrandbits(2)):
        at = random.getrandbits(24) % (len(made) + 1)
        match random.getrandbits(3):
            case 0:
                made[at:at] = pack("<q", NUMBERS[random.getrandbits(8) % len(NUMBERS)] % 2**63)[
                    : 1 << random.getrandbits(2)
                ]
            case 1:
                del made[at : at + 1 + random.getrandbits(3)]
            case 2:
                del made[at:]
            case 3:
                made[at:at] = made[at : at + 16]
            case _ if at < len(made):
                made[at] = random.getrandbits(8) if at & 1 else made[at] ^ (1 << random.getrandbits(3) % 8)
    return bytes(made)


def rearrange(random, value):
    """Return a msgpack value with a part replaced by a wrong one."""
    if not isinstance(value, list) or not value or not random.getrandbits(4):
        return a_value(random, value)
    made, at = list(value), random.getrandbits(16) % len(value)
    match random.getrandbits(3):
        case 0:
            made[at:at] = [a_value(random)]
        case 1:
            del made[at]
        case 2:
            made[at] = made[random.getrandbits(16) % len(made)]
        case _:
            made[at] = rearrange(random, made[at])
    return made


class MsgpackTarget:
    """A target of msgpack texts, mutated by bytes and by values."""

    def __init__(self, seeds):
        self.seeds = seeds
        self.held = [msgspec.msgpack.decode(seed) for seed in seeds]

    def make(self, random):
        at = random.getrandbits(16) % len(self.seeds)
        match random.getrandbits(3):
            case 0 | 1 | 2:
                return scribble(random, self.seeds[at])
            case 3:
                return _PREFIXES[random.getrandbits(8) % len(_PREFIXES)] + self.seeds[at]
        held = self.held[at]
        for _ in range(1 + random.getrandbits(1)):
            held = rearrange(random, held)
        return msgspec.msgpack.encode(held)


class Frames:
    """The decoder of frames, with a checksum that is right in most of them, so that the inside is reached."""

    def __init__(self):
        self.seeds = [encode(batch) for batch in some_batches()]
        self.parts = [split(seed) for seed in self.seeds]
        self.decoded = 0

    def make(self, random):
        header, body = self.parts[random.getrandbits(16) % len(self.parts)]
        kind = random.getrandbits(4)
        if kind < 2:  # as a disk or a stranger would have it
            return scribble(random, joined(msgspec.msgpack.encode(header), body))
        if kind < 7:
            for _ in range(1 + random.getrandbits(1)):
                header = rearrange(random, header)
        packed = msgspec.msgpack.encode(header)
        if kind in {7, 8, 9}:
            packed = scribble(random, packed)
        if kind in {6, 9, 10, 11, 12, 13}:
            body = scribble(random, body)
        if kind == 14:
            body = self.parts[random.getrandbits(16) % len(self.parts)][1]
        if kind == 15:
            packed = _PREFIXES[random.getrandbits(8) % len(_PREFIXES)] + packed
        return joined(packed, body)

    def check(self, data):
        try:
            batch = decode(data)
        except FrameError:
            return False
        self.decoded += 1
        use_batch(batch, data, logged=self.decoded % LOGGED == 0)
        return True


def split(frame):
    """Return the header and the body of a frame."""
    (length,) = unpack_from("<I", frame, 8)
    return msgspec.msgpack.decode(frame[PREFIX : PREFIX + length]), frame[PREFIX + length :]


def joined(header, body):
    """Build a frame with a right checksum from any header and body."""
    return sealed(header + body, len(header))


def use_batch(batch, data, *, logged):
    """Read every column as a receiver would, and write it again; it must say the same."""
    rows = len(batch)
    assert rows <= len(data)
    assert len(batch.from_ids.tolist()) == len(batch.to_ids.tolist()) == rows
    for row in range(min(rows, 4)):
        message = Message("exp", batch, row)
        assert isinstance(message.step, int | None)
        assert isinstance(message.sent_at, float)
        assert isinstance(message.id + message.channel + "".join(message.labels), str)
        if batch.lines is not None:
            assert len(message.data) <= len(data)
    again = encode(batch)
    same = decode(again)
    assert encode(same) == again
    assert same.from_ids.tolist() == batch.from_ids.tolist()
    if batch.extension is not None and batch.extension.in_reply_to is not None:
        assert len(batch.extension.in_reply_to.tolist()) == rows
    if isinstance(batch.lines, TypedColumns):
        assert batch.lines.to_arrow().num_rows == rows
        batch.lines.to_arrow().validate(full=True)
    picked = batch.take(np.arange(rows)[::2])
    assert decode(encode(picked)).to_ids.tolist() == batch.to_ids.tolist()[::2]
    if logged and batch.lines is not None and rows:
        part = LoggedPart(batch, None, "1-1", "mailbox", 0)
        assert record_batch("exp", [part]).num_rows == rows


def some_batches():
    """Return small batches that have, between them, every kind of column."""
    ints, mixed = [5, -1, 2**63 - 1], [7, "Ann", None]
    lines = [b'{"content":"hi"}', b"{}", b'{"n":[1,2]}']
    texts, rows, index = PayloadColumn.of(lines), np.array([0, 2], np.uint32), np.array([0, 0, 1], np.uint32)
    extension = Extension(
        attempt=2,
        deliver=np.array([5, 5, 7]),
        ordinal=index,
        in_reply_to=MessageIdColumn.of(["3-0-7", None, "s-1-8"]),
        expects_answer=np.array([True, False, True]),
        reply_mailbox="town.east",
        caused_by=MessageIdColumn.of([None, "s-1-9", "3-0-7"]),
        audience=AudiencePairs("friends", 3),
    )
    several = {
        "epoch": 2**61,
        "topics": ("agent-chat", ":plain"),
        "topic": np.array([0, 1, 0], np.uint16),
        "numbers": np.array([0, 2, 2**32 - 1], np.uint32),
        "step": np.array(ints),
        "sent_at": np.array([0.0, 1.5e9, 2.0]),
    }
    return [
        batch_to(ints, first=9, lines=texts),
        batch_to(mixed, lines=PayloadColumn.of(lines[:2], index), step=3, sent_at=1.5e9),
        batch_to(ints, mixed, lines=PayloadColumn.of([b"\xff\n", b"", b"x"], raw=True)),
        batch_to(mixed, ints, lines=PayloadColumn.of([b"\n"], index * 0, raw=True)),
        batch_to(mixed, ints, labels={"odd": rows, "x": rows[:1]}),
        batch_to([], lines=PayloadColumn.of([])),
        batch_to(mixed, lines=texts, labels={"odd": rows}, noted=rows, **several),
        batch_to(mixed, lines=texts, step=4, extension=extension),
        batch_to(mixed, lines=texts, extension=Extension(deliver=5)),
        batch_to(mixed, lines=columns(price=[1.5, 2.5, -0.0], text=["né", "", "x"], open=[True, False, True])),
    ]


class Verdicts(MsgpackTarget):
    """The decoder of the interceptor's answers, as a sender runs it."""

    def __init__(self):
        judgement = BatchVerdict(
            {0: ("black-list", "no"), 2: ("words", "é")}, {1: ("words", b"{}")}, {"odd": {0, 1}}, {3}
        )
        super().__init__(
            [BatchVerdict().encode(3, wants_payload=False), judgement.encode(3, wants_payload=True, snapshot=2**33)]
        )

    def check(self, data):
        try:
            verdicts = decode_verdicts(data)
            found = verdicts.batch_verdict(4)
        except FrameError:
            return False
        assert all(row < 4 for rows in (found.blocked, found.rewritten, found.deferred) for row in rows)
        assert -2 <= verdicts.epoch < 2**62
        assert 0 <= verdicts.snapshot < 2**62
        decode_verdicts(found.encode(verdicts.epoch, wants_payload=False))
        return True


class Grants(MsgpackTarget):
    """The decoder of rules that the interceptor grants, as a sender runs it, and the rules that are made of them."""

    def __init__(self):
        listed = BlackListSnapshot("black_list", [(1, 2), ("Ann", None), (None, 7)])
        drawn = AllowGraphSnapshot(
            "allow_graph", [(1, 2), (2, "Ann")], [(5, 0), ("Bob", 0)], [9, "all"], user=True, channels=False
        )
        granted = [
            RuleSnapshot(0),
            RuleSnapshot(2**32),
            RuleSnapshot(2**33 + 7, ()),
            RuleSnapshot(2**34 + 1, (listed, drawn)),
        ]
        super().__init__([encode_snapshot(each) for each in granted])
        self.batches = some_batches()

    def check(self, data):
        try:
            grant = decode_snapshot(data)
            rules = grant.build()
        except FrameError:
            return False
        assert grant.number == 0 or 2**32 <= grant.number < 2**62
        for batch in (self.batches[0], self.batches[6]):
            for rule in rules:
                assert all(
                    0 <= row < len(batch) and verdict.blocked for row, verdict in rule.check_batch(batch, "x").items()
                )
        assert decode_snapshot(encode_snapshot(grant)) == grant
        return True


class Notes(MsgpackTarget):
    """The decoder of log notes."""

    def __init__(self):
        rows = np.array([0, 2], "<u4").tobytes()
        note = LogNote(3, "m", (RuleNote("words", "no", rows),), (Before(rows, b"{}"),))
        super().__init__([encode_log_note(note), encode_log_note(LogNote(1)), encode_log_note(LogNote(0, "m"))])
        self.batch = some_batches()[0]

    def check(self, data):
        try:
            note = decode_log_note(data, 3)
        except FrameError:
            return False
        assert record_batch("exp", [LoggedPart(self.batch, None, "1-1", None, note.fate, note)]).num_rows == 3
        return True


class Records(MsgpackTarget):
    """The decoder of the directory's records, and the directory that is made of them."""

    def __init__(self):
        ints = np.array([1, 2, 2**63 - 1], "<i8").tobytes()
        record = MailboxRecord("m", [Claim(("agent-chat", "user-chat"), ints, ("Ann",))], ["plain"], ["exps:exp:*"])
        none = MailboxRecord("n", [], [], [])
        super().__init__([encode_record(record), encode_record(none), encode_record(none.succeeds(record))])
        self.batches = some_batches()

    def check(self, data):
        try:
            record = decode_record(data)
        except FrameError:
            return False
        assert check_name("mailbox", record.mailbox) == record.mailbox
        assert record.frame_rows > 0
        assert record.frame_bytes > 0
        directory = Directory("exp")
        directory.update(1, [record], [record.mailbox])
        for batch in (self.batches[0], self.batches[6]):
            assert len(directory.routing.route(batch)) == len(batch)
        record.agents()
        [*record.former()]
        return True


class Sink:
    """A transport that keeps nothing."""

    closed = False

    def abort(self):
        self.closed = True

    def is_closing(self):
        return self.closed

    def get_extra_info(self, _name):
        return None  # there is no socket

    def write(self, *_, **__):
        return 0

    set_write_buffer_limits = get_write_buffer_size = pause_reading = resume_reading = write


class Requests:
    """The lane as the interceptor sees it: a caller with the token says anything. Needs a running loop."""

    def __init__(self):
        self.frames = Frames()
        self.snapshots = MsgpackTarget(
            [encode_snapshot(SnapshotRequest(0)), encode_snapshot(SnapshotRequest(2**32, 5))]
        )
        self.server = LaneServer(self.answer, self.snapshot)
        self.answered = 0

    def answer(self, request, *, patient):
        rows = len(decode(bytes(request)))
        self.answered += 1
        return BatchVerdict(deferred=set(range(rows))).encode(1, wants_payload=False)

    def snapshot(self, request):
        asked = decode_snapshot_request(request)
        assert 0 <= asked.held < 2**62
        assert abs(asked.passed) < 2**53
        self.answered += 1
        return encode_snapshot(RuleSnapshot(0))

    def make(self, random):
        said = [self.server.token.encode() if random.getrandbits(4) else b"wrong"]
        for _ in range(1 + random.getrandbits(2)):
            kind = (JUDGE, WAIT, SNAPSHOT, 7)[random.getrandbits(8) % 4]
            asked = self.snapshots if kind == SNAPSHOT else self.frames
            frame = asked.make(random) if random.getrandbits(1) else asked.seeds[0]
            said.append(pack("<IB", random.getrandbits(32), kind) + frame)
        stream = b"".join(pack("<I", len(each)) + each for each in said)
        return stream if random.getrandbits(1) else scribble(random, stream)

    def check(self, data):
        before, sink, caller = self.answered, Sink(), _LanePeer(self.server)
        caller.connection_made(sink)
        for at in range(0, len(data), 97):
            if not sink.closed:
                receive(caller, data[at : at + 97])
        caller.connection_lost(None)
        assert not self.server.connections
        return self.answered > before


class Answers:
    """The verdict lane as a messager sees it, with any answers. Needs a running loop."""

    def __init__(self):
        self.verdicts = Verdicts()

    def make(self, random):
        said = [b"", *(pack("<I", random.getrandbits(1)) + self.verdicts.make(random) for _ in range(2))]
        stream = b"".join(pack("<I", len(each)) + each for each in said)
        return stream if random.getrandbits(1) else scribble(random, stream)

    def check(self, data):
        sink, client = Sink(), LaneClient()
        client.connection_made(sink)
        asked = [asyncio.get_running_loop().create_future() for _ in range(2)]
        client._opening = asyncio.get_running_loop().create_future()
        client._waiting |= dict(enumerate(asked))
        for at in range(0, len(data), 53):
            if not sink.closed:
                receive(client, data[at : at + 53])
        client.connection_lost(None)
        client._opening.exception()  # or asyncio says that nobody looked
        decoded = False
        for answer in asked:
            assert answer.done()
            if answer.exception() is None:
                decoded |= self.verdicts.check(answer.result())
        return decoded


TARGETS = {
    "frames": Frames,
    "verdicts": Verdicts,
    "grants": Grants,
    "notes": Notes,
    "records": Records,
    "requests": Requests,
    "answers": Answers,
}


def inputs(target, seed, count):
    """Give so many inputs, the same ones for the same seed."""
    random = Random(seed)
    return (target.make(random) for _ in range(count))
