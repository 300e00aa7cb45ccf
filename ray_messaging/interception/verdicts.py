"""The verdicts on a batch: as an object with verdicts by row, and as the reply that an interceptor sends."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec
import numpy as np

from ray_messaging.errors import FrameError
from ray_messaging.wire.notes import RuleNote

T = TypeVar("T")

INTERCEPTOR = "interceptor"  # the `name` in the Fenced error of an interceptor that has a successor
# Numbers that stand in place of an interceptor's epoch:
FOREIGN = -1  # verdicts without an epoch, such as those of a user's own actor with a method `forward`
NOBODY = -2  # no verdicts; the server accepts this only if the experiment has no interceptor
MIXED = -3  # verdicts with different epochs; the server never accepts this
_EPOCHS = 2**62
PATIENCE_S = 2.0  # a request about deferred messages is answered after this time, even if there are no verdicts


class Rewritten(msgspec.Struct, array_like=True, frozen=True):
    """The new payload `line` of some `rows` (uint32, little endian), and the last rule that changed this payload."""

    rule: str
    rows: bytes
    line: bytes


class Labelled(msgspec.Struct, array_like=True, frozen=True):
    """The rows (uint32, little endian) that have a label."""

    label: str
    rows: bytes


class VerdictReply(msgspec.Struct, array_like=True, frozen=True):
    """The interceptor's reply about one batch.

    `epoch` is the interceptor's epoch (the number of its start). If the sender itself judged the batch, by a rule
    snapshot, `epoch` is the number of that snapshot. If `judged` is False, nothing was decided, because the rules need
    payloads: the next request must contain them. `wants_payload` says whether later batches must contain payloads.
    `deferred` are the rows (uint32) that wait for a slow rule. `snapshot` is the number of the rule snapshot that is
    valid and can be requested, or 0 if there is none (see `rule_snapshot`).
    """

    epoch: int
    judged: bool = True
    wants_payload: bool = False
    blocked: tuple[RuleNote, ...] = ()
    rewritten: tuple[Rewritten, ...] = ()
    labelled: tuple[Labelled, ...] = ()
    deferred: bytes = b""
    snapshot: int = 0

    def batch_verdict(self, count: int) -> "BatchVerdict":
        """Return the verdicts by row; raise FrameError if they are damaged, or name a row that is not below `count`."""
        found = BatchVerdict(epoch=self.epoch)
        for why in self.blocked:
            found.blocked.update(dict.fromkeys(_numbers(why.rows, count), (why.rule, why.reason)))
        for each in self.rewritten:
            if b"\n" in each.line:
                raise FrameError(
                    "the interceptor's answer is damaged, because it rewrites a payload in several lines: please "
                    "report this"
                )
            found.rewritten.update(dict.fromkeys(_numbers(each.rows, count), (each.rule, each.line)))
        for each_label in self.labelled:
            found.labels[each_label.label] = set(_numbers(each_label.rows, count))
        if self.deferred:
            found.deferred.update(_numbers(self.deferred, count))
        return found


class BatchVerdict(msgspec.Struct, array_like=True):
    """The verdicts on a batch by row. A row that is in none of the fields passes unchanged.

    `blocked` maps a row to (rule, reason), `rewritten` a row to (rule, payload as JSON), `labels` a label to its rows.
    `deferred` are the rows that wait for a slow rule. `epoch` is the interceptor's epoch (the number of its start). If
    the sender itself judged the batch, by a rule snapshot, `epoch` is the number of that snapshot.
    """

    blocked: dict[int, tuple[str, str]] = {}
    rewritten: dict[int, tuple[str, bytes]] = {}
    labels: dict[str, set[int]] = {}
    deferred: set[int] = set()
    epoch: int = FOREIGN

    def add(self, other: "BatchVerdict") -> None:
        """Add other verdicts on the same rows."""
        self.blocked |= other.blocked
        self.rewritten |= other.rewritten
        for name, rows in other.labels.items():
            self.labels.setdefault(name, set()).update(rows)
        self.deferred |= other.deferred

    def moved(self, places: Mapping[int, int]) -> "BatchVerdict":
        """Return these verdicts with the row numbers of another batch, and with the epoch FOREIGN.

        Row i becomes row `places[i]`. Verdicts on rows that are not in `places` are left out.
        """
        return BatchVerdict(
            {place: self.blocked[row] for row, place in places.items() if row in self.blocked},
            {place: self.rewritten[row] for row, place in places.items() if row in self.rewritten},
            {name: {place for row, place in places.items() if row in rows} for name, rows in self.labels.items()},
            {place for row, place in places.items() if row in self.deferred},
        )

    def encode(self, epoch: int, *, wants_payload: bool, snapshot: int = 0) -> bytes:
        """Encode these verdicts as a `VerdictReply`.

        Args: `epoch` is the number of the interceptor's start. Each argument becomes the field of the same name.
        """
        if not (self.blocked or self.rewritten or self.labels or self.deferred):
            return encode_verdicts(VerdictReply(epoch, wants_payload=wants_payload, snapshot=snapshot))
        groups, changes = _rows_of(self.blocked), _rows_of(self.rewritten)
        return encode_verdicts(
            VerdictReply(
                epoch,
                wants_payload=wants_payload,
                # A reason may quote text that cannot be encoded as UTF-8.
                blocked=tuple(
                    RuleNote(rule, reason.encode(errors="backslashreplace").decode(), _bytes(rows))
                    for (rule, reason), rows in groups.items()
                ),
                rewritten=tuple(Rewritten(rule, _bytes(rows), line) for (rule, line), rows in changes.items()),
                labelled=tuple(Labelled(name, _bytes(rows)) for name, rows in self.labels.items() if rows),
                deferred=_bytes(self.deferred),
                snapshot=snapshot,
            )
        )


def _rows_of(found: Mapping[int, T]) -> dict[T, list[int]]:
    groups: defaultdict[T, list[int]] = defaultdict(list)
    for row, value in found.items():
        groups[value].append(row)
    return groups


def _numbers(rows: bytes, count: int) -> list[int]:
    if len(rows) % 4:
        raise FrameError(
            f"the interceptor's answer is damaged, because its row numbers have {len(rows)} bytes, which is not a "
            "multiple of 4: please report this"
        )
    numbers = np.frombuffer(rows, "<u4")
    if len(numbers) and int(numbers.max()) >= count:
        raise FrameError(
            f"the interceptor's answer is damaged, because it names row {int(numbers.max())}, but the batch has only "
            f"{count} rows: please report this"
        )
    found: list[int] = numbers.tolist()
    return found


def _bytes(rows: Iterable[int]) -> bytes:
    return np.array(sorted(rows), "<u4").tobytes()


encode_verdicts = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(VerdictReply).decode


def decode_verdicts(data: bytes) -> VerdictReply:
    """Decode a `VerdictReply`; raise FrameError if it is not valid."""
    try:
        verdicts = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FrameError(
            f"the interceptor's answer cannot be read ({error}): use one version of ray_messaging in all processes"
        ) from error
    if not NOBODY <= verdicts.epoch < _EPOCHS:
        raise FrameError(
            f"the interceptor's answer cannot be read, because the number of the interceptor's start, "
            f"{verdicts.epoch}, is not valid: use one version of ray_messaging in all processes"
        )
    if not 0 <= verdicts.snapshot < _EPOCHS:
        raise FrameError(
            f"the interceptor's answer cannot be read, because its version number of the rules, {verdicts.snapshot}, "
            "is not valid: use one version of ray_messaging in all processes"
        )
    return verdicts
