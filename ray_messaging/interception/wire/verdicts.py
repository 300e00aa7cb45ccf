"""What travels between a messager and the interceptor: a batch's columns there, what becomes of its rows back."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

import msgspec
import numpy as np

from ray_messaging.errors import FrameError
from ray_messaging.model.batch import Batch
from ray_messaging.wire.log_notes import Why

T = TypeVar("T")

INTERCEPTOR = "interceptor"  # in a Fenced: it has a successor, which can be asked
FOREIGN = -1  # the epoch of verdicts that no interceptor of this experiment gave
NOBODY = -2  # and of those that nobody gave: they hold only where the experiment has no interceptor
MIXED = -3  # of rows that several interceptors passed: it never counts
_EPOCHS = 2**62


class Rewritten(msgspec.Struct, array_like=True, frozen=True):
    """Say what the payload of rows (uint32, little endian) became, and by which rule (the last that changed it)."""

    rule: str
    rows: bytes
    line: bytes


class Labelled(msgspec.Struct, array_like=True, frozen=True):
    """Say which rows (uint32, little endian) bear a label."""

    label: str
    rows: bytes


class VerdictReply(msgspec.Struct, array_like=True, frozen=True):
    """Answer for one batch; append-only.

    `epoch` is the interceptor's. With `judged` false nothing was decided: the rules want the payloads, too.
    `wants_payload` says what to send the next time. `deferred` are rows (uint32) of which nothing is known yet: a slow
    rule is at work, so wait for them. `standing`: under this number the rules can be had (see `grants`), or count where
    they are; 0: they cannot be had.
    """

    epoch: int
    judged: bool = True
    wants_payload: bool = False
    blocked: tuple[Why, ...] = ()
    rewritten: tuple[Rewritten, ...] = ()
    labelled: tuple[Labelled, ...] = ()
    deferred: bytes = b""
    standing: int = 0

    def judgement(self, count: int) -> "BatchVerdict":
        """Return what becomes of each of `count` rows; raise FrameError where one lies outside the batch."""
        found = BatchVerdict()
        for why in self.blocked:
            found.blocked.update(dict.fromkeys(_numbers(why.rows, count), (why.rule, why.reason)))
        for each in self.rewritten:
            if b"\n" in each.line:
                raise FrameError("the interceptor's answer is damaged: it rewrites a payload in several lines")
            found.rewritten.update(dict.fromkeys(_numbers(each.rows, count), (each.rule, each.line)))
        for each_label in self.labelled:
            found.labels[each_label.label] = set(_numbers(each_label.rows, count))
        if self.deferred:
            found.deferred.update(_numbers(self.deferred, count))
        return found


class BatchVerdict(msgspec.Struct):
    """Hold what becomes of a batch's rows; one that stands nowhere just passes.

    `blocked` row -> (rule, reason); `rewritten` row -> (rule, payload as JSON); `labels` label -> rows; and the
    `deferred` rows.
    """

    blocked: dict[int, tuple[str, str]] = {}
    rewritten: dict[int, tuple[str, bytes]] = {}
    labels: dict[str, set[int]] = {}
    deferred: set[int] = set()

    def add(self, other: "BatchVerdict") -> None:
        """Take over another one on the same rows."""
        self.blocked |= other.blocked
        self.rewritten |= other.rewritten
        for name, rows in other.labels.items():
            self.labels.setdefault(name, set()).update(rows)
        self.deferred |= other.deferred

    def moved(self, places: Sequence[int]) -> "BatchVerdict":
        """Return the same for rows that stand at `places` in another batch."""
        return BatchVerdict(
            {places[row]: why for row, why in self.blocked.items()},
            {places[row]: what for row, what in self.rewritten.items()},
            {name: {places[row] for row in rows} for name, rows in self.labels.items()},
            {places[row] for row in self.deferred},
        )

    def picked(self, rows: Sequence[int], places: Sequence[int]) -> "BatchVerdict":
        """Return the same for some of the rows, which stand at `places` in another batch."""
        at = dict(zip(rows, places, strict=True))
        return BatchVerdict(
            {at[row]: why for row, why in self.blocked.items() if row in at},
            {at[row]: what for row, what in self.rewritten.items() if row in at},
            {name: {at[row] for row in found if row in at} for name, found in self.labels.items()},
            {at[row] for row in self.deferred if row in at},
        )

    def encode(self, epoch: int, *, wants_payload: bool, standing: int = 0) -> bytes:
        """Encode the answer."""
        if not (self.blocked or self.rewritten or self.labels or self.deferred):
            return encode_verdicts(VerdictReply(epoch, wants_payload=wants_payload, standing=standing))
        groups, changes = _rows_of(self.blocked), _rows_of(self.rewritten)
        return encode_verdicts(
            VerdictReply(
                epoch,
                wants_payload=wants_payload,
                # A reason may quote what cannot be encoded.
                blocked=tuple(
                    Why(rule, reason.encode(errors="replace").decode(), _bytes(rows))
                    for (rule, reason), rows in groups.items()
                ),
                rewritten=tuple(Rewritten(rule, _bytes(rows), line) for (rule, line), rows in changes.items()),
                labelled=tuple(Labelled(name, _bytes(rows)) for name, rows in self.labels.items() if rows),
                deferred=_bytes(self.deferred),
                standing=standing,
            )
        )


def _rows_of(found: Mapping[int, T]) -> dict[T, list[int]]:
    """Return the rows that have the same, by what they have."""
    groups: defaultdict[T, list[int]] = defaultdict(list)
    for row, what in found.items():
        groups[what].append(row)
    return groups


def _numbers(rows: bytes, count: int) -> list[int]:
    if len(rows) % 4:
        raise FrameError("the interceptor's answer is damaged")
    numbers = np.frombuffer(rows, "<u4")
    if len(numbers) and int(numbers.max()) >= count:
        raise FrameError(f"the interceptor speaks of row {int(numbers.max())} of {count}")
    found: list[int] = numbers.tolist()
    return found


def _bytes(rows: Iterable[int]) -> bytes:
    return np.array(sorted(rows), "<u4").tobytes()


class VerdictClient(Protocol):
    """Give verdicts: the interceptor in this process, over its lane, or by Ray call."""

    way: str

    async def judge(self, batch: Batch) -> VerdictReply:
        """Judge a batch; a batch asked again is answered as before. Raises InterceptorUnavailable, Closed."""

    async def wait(self, batch: Batch) -> VerdictReply:
        """Return the verdicts of some deferred rows, as soon as there are any, or after a while.

        Raises: InterceptorUnavailable.
        """

    async def close(self) -> None:
        """Let the interceptor go."""


class PassAll:
    """Let everything pass: no interceptor was set. The server takes it only where the experiment has none."""

    way = "none"

    async def judge(self, batch: Batch) -> "VerdictReply":  # noqa: ARG002 - a Judge's
        """Block nothing."""
        return VerdictReply(NOBODY)

    wait = judge

    async def close(self) -> None:
        """Do nothing."""


encode_verdicts = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(VerdictReply).decode


def decode_verdicts(data: bytes) -> VerdictReply:
    """Decode an answer; raise FrameError."""
    try:
        verdicts = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(f"the interceptor's answer cannot be read: {error}") from error
    if not NOBODY <= verdicts.epoch < _EPOCHS:
        raise FrameError(f"the interceptor's answer cannot be read: it speaks of epoch {verdicts.epoch}")
    if not 0 <= verdicts.standing < _EPOCHS:
        raise FrameError(f"the interceptor's answer cannot be read: it speaks of number {verdicts.standing}")
    return verdicts
