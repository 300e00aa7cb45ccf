"""Frames and notes as senders write them, straight into the streams, and the rows that the log must have of them."""

import asyncio
from contextlib import suppress
from datetime import UTC, datetime

import numpy as np
import pyarrow.parquet as pq
import redis

from ray_messaging.addressing.directory import MailboxRecord
from ray_messaging.addressing.server_keys import Keys
from ray_messaging.cluster.actors.log_host import LogHost
from ray_messaging.cluster.spec import Experiment
from ray_messaging.config import MessagingConfig
from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.log_schema import OF_BROADCASTS, SCHEMA
from ray_messaging.eventlog.writing.entries import decode_entry, pieces
from ray_messaging.eventlog.writing.log_columns import LoggedPart, record_batch
from ray_messaging.eventlog.writing.open_segment import OpenSegment
from ray_messaging.eventlog.writing.writer import LogWriter
from ray_messaging.message import Message
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn, PayloadColumn
from ray_messaging.model.extension import Extension
from ray_messaging.model.fates import DELIVERED, FATES
from ray_messaging.transports.backend import open_transport
from ray_messaging.transports.transport_values import LOG, FrameWrite, Limits, LoggedFrame, SendRequest
from ray_messaging.wire.frames import decode, encode
from ray_messaging.wire.notes import Before, LogNote, RuleNote, encode_log_note
from support.patience import WAIT_S

LIMITS = Limits(messages=10**9, nbytes=10**12, lease_s=60.0, leased=False)


def batch_of(rows, *, first=0, sender="s", payload=None, **columns):
    """Build a batch of `rows` messages, the payload of which says their numbers."""
    columns.setdefault("from_ids", IdColumn(np.arange(rows)))
    columns.setdefault("to_ids", IdColumn(np.arange(rows) % 7))
    columns.setdefault("topics", ("agent-chat",))
    columns.setdefault("sent_at", 1_700_000_000.25)
    columns.setdefault("lines", PayloadColumn.encode([payload or {"n": first + row} for row in range(rows)], 2**30))
    return Batch(sender=sender, epoch=1, first=first, rows=rows, **columns)


def rows_of(*items, exp_id="exp", limit=2**30):
    """Return the log's rows of some entries, as dicts."""
    parts = [part for item in items if (part := decode_entry(item).part) is not None]
    if not parts:
        return []
    found = record_batch(exp_id, [piece for part in parts for piece, _ in pieces(part, 0, limit)])
    found.validate(full=True)
    assert found.schema == SCHEMA
    return found.to_pylist()


def write_batches(where, *batches):
    """Write the only segment of a log: these batches, delivered to one mailbox; return the log."""
    Folder(where).write(1, table_of_batches(*batches), {"exp_id": "exp", "epoch": 1, "first_row": 0, "cursors": {}})
    return EventLog.open(where)


def table_of_batches(*batches):
    """Return the rows of batches that were delivered to one mailbox."""
    segment = OpenSegment(1, 0)
    parts = [LoggedPart(batch, None, f"{n}-0", "m", DELIVERED) for n, batch in enumerate(batches)]
    segment.add(record_batch("exp", parts))
    return segment.table()


def expected(item, exp_id="exp"):
    """Return the rows that the log must have of an entry; slow, by the public classes of single messages."""
    batch = decode(item.frame)
    found = []
    noted = [] if batch.noted is None else batch.noted.tolist()  # the log has them by their note
    for row in sorted({*range(len(batch))}.difference(noted)):
        message = Message(exp_id, batch, row)
        from_id, to_id = message.from_id, message.to_id
        found.append(
            {
                "message_id": message.id,
                "step": message.step,
                **_of_extension(batch.extension, row),
                "channel": message.channel,
                "subtopic": message.subtopic,
                "from_id": from_id if isinstance(from_id, int) else None,
                "to_id": to_id if isinstance(to_id, int) else None,
                "from_name": from_id if isinstance(from_id, str) else None,
                "to_name": to_id if isinstance(to_id, str) else None,
                "payload": message.data.decode(errors="replace"),
                "payload_before": None,
                "labels": [*message.labels] or None,
                "sent_at": datetime.fromtimestamp(0, UTC) + _micros(message.sent_at),
                "delivered_at": datetime.fromtimestamp(int(item.entry.partition("-")[0]) / 1000, UTC),
                "fate": "delivered",
                "rule": None,
                "reason": None,
                "sender": batch.sender,
                "mailbox": item.stream.rpartition(":")[0],
                "noted": False,
                "entry": item.entry,
                "row": row,
            }
        )
    return found


def _of_extension(extension, row):
    """Return a row's values of steps, questions and audiences."""
    extension = extension or Extension()
    deliver, audience = extension.deliver, extension.audience or (None, None)
    columns = {"ordinal": extension.ordinal, "expects_answer": extension.expects_answer}
    return {
        **{name: None if column is None else column[row].item() for name, column in columns.items()},
        "step_read": deliver[row].item() if isinstance(deliver, np.ndarray) else deliver,
        "audience": audience[0],
        "audience_version": audience[1],
        **dict.fromkeys(OF_BROADCASTS),
        "in_reply_to": None if extension.in_reply_to is None else extension.in_reply_to[row],
        "caused_by": None if extension.caused_by is None else extension.caused_by[row],
    }


def _micros(seconds):
    return np.timedelta64(round(seconds * 1e6), "us").item()


def note_of(fate, *, mailbox="", why=(), before=()):
    """Build a note; why: (rule, reason, rows), before: (rows, payload)."""
    whys = tuple(RuleNote(rule, reason, np.array(rows, "<u4").tobytes()) for rule, reason, rows in why)
    said = tuple(Before(np.array(rows, "<u4").tobytes(), line) for rows, line in before)
    return encode_log_note(LogNote(FATES.index(fate), mailbox, whys, said))


POINTS = ["checked", "staged", "locked", "renamed", "written"]  # at which a writer may die


class Died(Exception):
    """The end of a process."""


class Crash:
    """Die at a point when it is reached once more than `after` times."""

    def __init__(self, point, after=0):
        self.point = point
        self.left = after
        self.over = False
        self.died = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    def __call__(self, point):
        if self.over:
            raise Died
        if point == self.point:
            if self.left == 0:
                self.over = True
                self.loop.call_soon_threadsafe(self.died.set)  # files are written by a thread
                raise Died
            self.left -= 1

    async def near(self):
        """Wait briefly for the end: it may need another message."""
        with suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                await self.died.wait()


class Society:
    """Write into the streams of one experiment, and keep which messages were written."""

    def __init__(self, server, exp_id="exp"):
        self.exp_id = exp_id
        self.transport = open_transport(server, exp_id, MessagingConfig())
        self.written = []
        self._first = 0
        self._seq = {}
        self._epoch = None

    async def mailbox(self, name):
        delta = await self.transport.load_directory(-1)
        record = MailboxRecord(name, [], [], [])
        listening = await self.transport.listen(record, delta.version, LIMITS, owner="", epoch=None)
        assert listening is not None
        return listening.epoch

    async def send(self, mailbox, rows, **columns):
        """Deliver a frame."""
        batch = self._next(rows, **columns)
        await self._ship(mailbox, rows, encode(batch))
        return batch

    async def block(self, rows, rule="no"):
        """Write a note of blocked messages."""
        batch = self._next(rows)
        noted = LoggedFrame(encode(batch), note_of("blocked", why=[(rule, "because", range(rows))]), rows)
        await self._ship(LOG, rows, b"", noted)
        return batch

    def _next(self, rows, **columns):
        batch = batch_of(rows, first=self._first, **columns)
        self._first += rows
        self.written += [batch.message_id(row) for row in range(rows)]
        return batch

    async def _ship(self, mailbox, rows, frame, noted=None):
        if self._epoch is None:
            self._epoch = (await self.transport.take_sender_epoch("s", keep_s=3600)).epoch
        seq = self._seq[mailbox] = self._seq.get(mailbox, 0) + 1
        version = (await self.transport.load_directory(-1)).version
        reply = await self.transport.send(
            SendRequest("s", self._epoch, version, -1, [FrameWrite(mailbox, seq, rows, frame, noted=noted)])
        )
        assert [*map(int, reply.fates)] == [0], reply


async def begin_log(opened, folder, exp_id, **settings):
    """Start a writer of an experiment's log, by the transport of a messager, or by one of its own."""
    transport = opened.engine.transport if hasattr(opened, "engine") else opened
    writer = LogWriter(transport, Folder(folder), exp_id, **settings)
    await writer.start()
    return writer


def read_segment(segment, *columns):
    """Return the rows of a segment's file, as any program reads them."""
    return pq.ParquetFile(segment.path, page_checksum_verification=True).read(columns or None)


def logged(where):
    """Return the message ids of all segments in a folder, in order."""
    folder = Folder(where)
    ids = []
    for segment in folder.segments():
        table = read_segment(segment)
        if table.num_rows > segment.rows:  # a file that grows by age was replaced between the look and the reading
            return logged(where)
        assert (segment.first_row, segment.rows) == (len(ids), table.num_rows)
        ids += table["message_id"].to_pylist()
    return ids


def seen(writer):
    """Return the message ids that a writer's snapshot has, in order."""
    segments, tables, first_row = writer.snapshot()
    ids = []
    for segment in segments:
        ids += read_segment(segment)["message_id"].to_pylist()
    assert len(ids) == first_row
    for table in tables:
        ids += table["message_id"].to_pylist()
    assert len(ids) == writer.rows
    return ids


def rows_in_memory(writer):
    """Return the rows that a writer has, and no file yet."""
    _, tables, _ = writer.snapshot()
    return [row for table in tables for row in table.to_pylist()]


def host_of(config, log_dir, run="one", on_existing="error", exp_id="exp", steps=None, **settings):
    """Return the log's process of a run that has claimed the experiment."""
    with redis.Redis(host=config.server, port=config.port, password=config.password) as client:
        client.hset(Keys(exp_id).meta, "start:run", run)
    experiment = Experiment(exp_id, run, MessagingConfig(**settings), str(log_dir), steps=steps, redis=config)
    return LogHost(experiment, on_existing)


async def die(host):
    """End a log's process without writing."""
    host._writer._read_task.cancel()
    await asyncio.gather(host._writer._read_task, return_exceptions=True)
    await host.abandon()


async def failed(writer):
    """Wait until the writer of a log has died."""
    async with asyncio.timeout(WAIT_S):
        while writer.error is None:
            await writer._waiters.wait_change()
