"""The interceptor's answers. They are kept for senders that ask again, and saved with the counts that they changed."""

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

import msgspec

from ray_messaging.common.once_by_call import OnceByCall
from ray_messaging.default_limits_and_leases import FRAME_LIMIT
from ray_messaging.errors import FrameError
from ray_messaging.interception.interceptor.rule_pipeline import Deferred
from ray_messaging.interception.interceptor.state_writer import StateWriter
from ray_messaging.interception.verdicts import BatchVerdict, decode_verdicts, encode_verdicts
from ray_messaging.model.batch import Batch

_MAX_SENDERS = 20_000  # for so many senders at most, the last answer is kept; a sender asks about one batch at a time
# How many bytes the last answers to all senders may take together. The answers that are kept for `keep_s` seconds have
# a limit of the same size, in memory and on the server. The answer to 16,384 messages takes 14 KB if a tenth of the
# messages is blocked, each for another reason.
LIMIT_BYTES = 64 * 2**20
_ENTRY_BYTES = 400  # the bytes of memory that an entry takes besides its data
_SMALL = 256  # a record of fewer bytes is not compressed, because it would not become much smaller
_ZLIB = zlib.compress(b"")[:1]
_encode = msgspec.msgpack.Encoder().encode


class RuleProgress(msgspec.Struct, array_like=True, frozen=True):
    """The rules that a message has passed before the slow rule for which it waits, and their verdict on the message."""

    passed: tuple[str, ...]
    so_far: BatchVerdict


class AnswerRecord(msgspec.Struct, array_like=True, frozen=True):
    """The interceptor's answer to a batch, as it is saved on the server.

    `paused` maps the number of each message that still waits for a slow rule to the rules that have already judged the
    message, and their verdict.
    """

    answer: bytes
    paused: dict[int, RuleProgress] = {}

    def pack(self) -> bytes:
        """Return the record as bytes, compressed unless it is small."""
        data = _encode(self)
        return data if len(data) < _SMALL else zlib.compress(data, 1)

    @classmethod
    def unpack(cls, data: bytes) -> "AnswerRecord":
        """Decode packed bytes; raise FrameError if they are invalid.

        Bytes that begin with the first byte of zlib's format are decompressed first.
        """
        try:
            return _decode(_inflated(data) if data[:1] == _ZLIB else data)
        except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise FrameError(f"a saved answer of the interceptor is damaged ({error}): please report this") from error


def _inflated(data: bytes) -> bytes:
    """Decompress data to at most a frame's size, because a few bytes could become more than the machine's memory."""
    reader = zlib.decompressobj()
    text = reader.decompress(data, FRAME_LIMIT)
    if not reader.eof:
        raise zlib.error(f"the compressed data is cut off, or has more than {FRAME_LIMIT:,} bytes when decompressed")
    return text


_decode = msgspec.msgpack.Decoder(AnswerRecord).decode


def key_of(batch: Batch) -> str:
    """Return the key of a batch's answer. If the batch is sent again, it has the same key.

    In steps, the key contains the step and the number of the group's attempt at it. A group that runs a step again
    begins a new attempt.
    """
    attempt = batch.attempt
    place = batch.epoch if attempt is None else f"{attempt.number}@{attempt.step}"
    return f"{batch.sender} {place} {batch.first} {batch.rows}"


def _head(batch: Batch) -> str:
    return f"{batch.sender} {batch.epoch} {batch.first}"


def record(answer: bytes, deferred: Iterable[Deferred]) -> bytes:
    """Return an answer as packed bytes.

    For each message that still waits for a slow rule, the bytes also say which rules have judged the message already.
    """
    return AnswerRecord(
        answer, {_number(each.message, 0): RuleProgress(each.passed, each.so_far) for each in deferred}
    ).pack()


def _number(batch: Batch, row: int) -> int:
    return row if batch.numbers is None else int(batch.numbers[row])


class SavedAnswers:
    """The answers that senders may ask for again, in memory and in part on the server.

    If an answer is lost, or the interceptor dies, the sender asks again about the same batch, which must not be counted
    twice. So the last answer to each sender is kept in memory. If the judging of a batch has changed a count, such as a
    rule's count of messages, the answer is also saved on the server. Saved answers, and all answers to batches of
    steps, are kept for `keep_s` seconds. They are kept longer while one of their messages waits for a slow rule, or
    while the step of their batch is open (`in_step`). Above LIMIT_BYTES the oldest answers are dropped early. If the
    batch of a dropped answer is sent again, the batch is judged and counted again. `unsafe` has the answers that must
    be saved on the server, and are not saved yet, each with its packed record.
    """

    def __init__(self, writer: StateWriter, keep_s: float, in_step: Callable[[str], bool]) -> None:
        # A function that is called with the id of a message, and returns whether the message waits for a slow rule.
        self.is_deferred: Callable[[str], bool] = lambda _: False
        self.unsafe: dict[str, tuple[bytes, bytes]] = {}
        self._writer = writer
        self._in_step = in_step
        self._epoch: int | None = None
        # For each sender: the key of its last batch, and the answer to that batch.
        self._last = OnceByCall[str, tuple[str, bytes]](most=_MAX_SENDERS, most_bytes=LIMIT_BYTES)
        self._counted = OnceByCall[str, bytes](most_bytes=LIMIT_BYTES, keep_s=keep_s, held=self._is_needed)
        # For each key of a batch in `_counted`: the key without its last part (the number of rows), and the whole key.
        self._batches: dict[str, str] = {}
        # The packed record that was read last, and its field `paused`.
        self._read: tuple[bytes, dict[int, RuleProgress]] = b"", {}
        self._saving: dict[str, asyncio.Task[bytes]] = {}
        writer.all_answers = self._all

    @property
    def nbytes(self) -> int:
        """Return the size in bytes of all answers that are kept."""
        return self._last.nbytes + self._counted.nbytes

    def _all(self) -> dict[str, bytes]:
        return dict(self._counted.items()) | {key: data for key, (_, data) in self.unsafe.items()}

    # -- answers for senders that ask again -----------------------------------------------------------------------

    def get(self, sender: str, key: str) -> bytes | Awaitable[bytes] | None:
        """Return the answer to a sender's batch, or None if no answer is kept.

        If the answer is just being saved, or could not be saved before, return an awaitable, which gives the answer
        once it is saved.
        """
        last = self._last.get(sender)
        if last is not None and last[0] == key:
            return last[1]
        if key in self._saving:
            return asyncio.shield(self._saving[key])
        known = self._answer(key) if key in self._counted else None
        return self.keep(key, *self.unsafe[key], sender=sender) if known is None and key in self.unsafe else known

    def _answer(self, key: str) -> bytes | None:
        """Return the answer with a key if it is one of those that are kept for `keep_s` seconds, otherwise None.

        An answer names the interceptor that gave it, by a number (its epoch). The returned answer names this
        interceptor.
        """
        data = self._counted.get(key)
        if data is None:
            return None
        answer = AnswerRecord.unpack(data).answer
        if self._epoch is None:
            return answer
        return encode_verdicts(msgspec.structs.replace(decode_verdicts(answer), epoch=self._epoch))

    def knows(self, key: str) -> bool:
        """Return whether the answer to a batch or message is one of those that are kept for `keep_s` seconds."""
        return key in self._counted

    def verdict_on(self, key: str) -> BatchVerdict | None:
        """Return the verdict on a message that was judged alone, or None if it is not known."""
        answer = self._answer(key)
        found = None if answer is None else decode_verdicts(answer).batch_verdict(1)
        return None if found is None or found.deferred else found

    def progress(self, message: Batch, row: int) -> RuleProgress | None:
        """Return which rules have judged a message that waits for a slow rule, and their verdict.

        Return None if nothing was saved about the message, because no rule has counted it.
        """
        number = _number(message, row)
        single = self._paused(message.message_id(row)).get(number)
        if single is not None:  # the message's own record is newer than the record of its batch
            return single
        return self._paused(self._batches.get(_head(message), "")).get(number)

    def _paused(self, key: str) -> dict[int, RuleProgress]:
        data = self._counted.get(key)
        if data is None:
            return {}
        if self._read[0] is not data:
            self._read = data, AnswerRecord.unpack(data).paused
        return self._read[1]

    def put(self, sender: str, key: str, answer: bytes) -> None:
        """Keep an answer as the last answer to a sender."""
        self._last.put(sender, (key, answer), len(answer))

    def keep(self, key: str, answer: bytes, data: bytes, *, sender: str = "") -> Awaitable[bytes]:
        """Save an answer together with all counts as they are now. Return the answer when both are saved.

        The answer is added to the next write before this method awaits anything, because the server must never have a
        changed count without the answer to the batch that was counted. If a `sender` is given, the answer is saved even
        if the caller stops waiting.

        Args: `data` is the form in which the answer is saved, a packed `AnswerRecord`.
        """
        self.unsafe[key] = (answer, data)
        saving = self._saved(key, answer, data, sender, self._writer.keep({key: data}))
        if not sender:
            return saving
        self._saving[key] = asyncio.create_task(saving, name="ray_messaging answer")
        return asyncio.shield(self._saving[key])

    async def _saved(self, key: str, answer: bytes, data: bytes, sender: str, saved: Awaitable[None]) -> bytes:
        try:
            await saved
            self.unsafe.pop(key, None)
            self.hold({key: data})
            if sender:
                self.put(sender, key, answer)
        finally:
            self._saving.pop(key, None)
        return answer

    def attach(self, records: Mapping[str, bytes]) -> None:
        """Save records of answers with the next write to the server, and keep them in memory.

        Args: `records` maps the key of a batch, or of a single message, to its packed `AnswerRecord`. The messages were
        counted, or wait for slow rules.
        """
        self._writer.attach(records)
        self.hold(records)

    def hold(self, records: Mapping[str, bytes]) -> None:
        """Keep records of answers in memory.

        If older answers have expired, or exceed the limit, they are dropped: here at once, and on the server with the
        next write.

        Args: `records` maps the key of a batch, or of a single message, to its packed `AnswerRecord`.
        """
        for key, data in records.items():
            self._note_batch(key)
            forgotten = self._counted.put(key, data, len(data) + _ENTRY_BYTES)
            self._drop(forgotten)
            if forgotten:
                self._writer.forget(forgotten)

    def _note_batch(self, key: str) -> None:
        if " " in key:  # only keys of batches have spaces, not keys of single messages
            self._batches[key.rpartition(" ")[0]] = key

    def forget(self, keys: Collection[str]) -> None:
        """Drop answers that nobody may ask for any more: here at once, and on the server with the next write."""
        self._drop(keys)
        for key in keys:
            self.unsafe.pop(key, None)
        self._writer.forget([*keys])

    def _drop(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._counted.pop(key)
            self._batches.pop(key.rpartition(" ")[0], None)

    def _is_needed(self, key: str, data: bytes, full: bool) -> bool:  # noqa: FBT001 - as `OnceByCall` calls it
        return self._in_step(key) or (not full and self._has_deferred(key, data))

    def _has_deferred(self, key: str, data: bytes) -> bool:
        """Return whether one of the messages to which an answer belongs still waits for a slow rule."""
        try:
            paused = AnswerRecord.unpack(data).paused
        except FrameError:  # the answer in a damaged record cannot be used, so the record need not be kept
            return False
        if not paused:
            return False
        if self.is_deferred(key):
            return True
        sender, epoch, first, _ = key.rsplit(" ", 3) if key.count(" ") > 2 else ("", "", "0", "")
        return any(self.is_deferred(f"{sender}-{epoch}-{int(first) + number}") for number in paused)

    def load(self, counted: Mapping[str, bytes], epoch: int) -> None:
        """Load the answers that an earlier interceptor has saved.

        Args: `counted` has the records of these answers, by the keys of their batches or messages. `epoch` is this
        interceptor's number. It replaces the earlier interceptor's number in the answers.
        """
        self._epoch = epoch
        self._counted.load((key, data, len(data) + _ENTRY_BYTES) for key, data in counted.items())
        for key in counted:
            self._note_batch(key)
