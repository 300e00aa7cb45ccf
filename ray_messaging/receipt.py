"""Receipts of sends, which are views of the outcome of their batch."""

import asyncio
from asyncio import InvalidStateError
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from copy import copy
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.model.columns import IdColumn
from ray_messaging.model.fates import FATES, IS_SENT, NAMES, UNDELIVERABLE, UNKNOWN, FateName, facts_of

if TYPE_CHECKING:
    from ray_messaging.model.batch import Batch, TopicColumn

_UNKNOWN = bytes((UNKNOWN,))
_SENT = bytes(np.flatnonzero(IS_SENT).tolist())


class PairFates(NamedTuple):
    """For each of n broadcasts, how many hearers got it, and how many have no mailbox: two arrays int64 (n,)."""

    delivered: NDArray[np.int64]
    undeliverable: NDArray[np.int64]


class Addresses(NamedTuple):
    """The recipients and the topics of messages. `topic` has each message's index into `topics` (None: always 0)."""

    to_ids: IdColumn
    topics: tuple[str, ...]
    topic: "TopicColumn | None"


class Outcome:
    """The fates of the messages of one batch.

    `codes` has one byte for each row: an index into FATES, or UNKNOWN while the row has no fate. If `pairs` is set,
    each row is a broadcast, and `pairs` has the number of hearers that got it, and of hearers that have no mailbox.
    """

    __slots__ = (
        "_in_step",
        "addresses",
        "blocks",
        "codes",
        "done_at",
        "epoch",
        "first",
        "numbers",
        "pairs",
        "sender",
        "sent_at",
    )

    def __init__(self, batch: "Batch") -> None:
        self.sender = batch.sender
        self.epoch = batch.epoch
        self.first = batch.first
        # `numbers` and `sent_at` are copied, because a view would keep the whole frame, with its payloads, as long as a
        # receipt lives.
        self.numbers = None if batch.numbers is None else batch.numbers.copy()
        # The receipts of a step live only until the step is committed, so `_in_step` may have views.
        ordinal = None if batch.extension is None else batch.ordinal
        self._in_step = None if ordinal is None else (batch.step, ordinal, batch.from_ids)
        self.sent_at = batch.sent_at if isinstance(batch.sent_at, float) else batch.sent_at.copy()
        self.codes = bytearray(_UNKNOWN * batch.rows)
        self.blocks: dict[int, tuple[str, str]] = {}
        self.addresses: Addresses | None = None
        self.done_at = 0.0
        self.pairs: PairFates | None = None

    def __len__(self) -> int:
        return len(self.codes)

    def cut(self, low: int, high: int) -> "Outcome":
        """Return an outcome with only the rows from `low` to before `high`.

        The rows must be direct messages that were sent outside of steps, and the message numbers of the rows must be
        consecutive.
        """
        if low == 0 and high == len(self.codes):
            return self
        made = copy(self)
        made.first, made.codes = self.first + low, self.codes[low:high]
        made.sent_at = self.sent_at if isinstance(self.sent_at, float) else self.sent_at[low:high].copy()
        made.blocks = {row - low: why for row, why in self.blocks.items() if low <= row < high}
        if self.addresses is not None:
            ids, topics, topic = self.addresses
            part = None if topic is None else topic[low:high].copy()
            made.addresses = Addresses(ids.take(slice(low, high)), topics, part)
        return made

    @property
    def fates(self) -> NDArray[np.uint8]:
        """Return a copy of the codes of all sends' fates, uint8 (n,)."""
        return np.frombuffer(self.codes, np.uint8).copy()

    def settle(self, rows: NDArray[np.intp] | None, fate: int | NDArray[np.uint8]) -> None:
        """Set the final fate of the given rows (None: of all rows)."""
        if rows is None and isinstance(fate, int):
            self.codes[:] = bytes((fate,)) * len(self.codes)
        else:
            np.frombuffer(self.codes, np.uint8)[slice(None) if rows is None else rows] = fate

    def keep_addresses(self, batch: "Batch") -> None:
        """Remember the channel of each message, so that the receipt of an undeliverable message can name it."""
        if self.addresses is None:
            ids = IdColumn(batch.to_ids.values.copy(), batch.to_ids.kinds, batch.to_ids.strings)
            self.addresses = Addresses(ids, batch.topics, None if batch.topic is None else batch.topic.copy())

    def reason(self, row: int) -> str | None:
        """Return why nobody received a message, or None. For an undeliverable message the reason names the channel."""
        if self.codes[row] != UNDELIVERABLE or self.addresses is None:
            return self.blocks[row][1] if row in self.blocks else facts_of(NAMES[self.codes[row]]).reason or None
        to_ids, topics, topic = self.addresses
        name, to_id = topics[0 if topic is None else int(topic[row])], to_ids[row]
        where = f"on channel {name[1:]!r}" if to_id is None else f"for agent {to_id!r} on {name.removeprefix(':')!r}"
        return f"no group or messager listens {where}, and no plain Redis client does"

    def message_id(self, row: int) -> str:
        """Return the id of one message, in the form of `Batch.message_id`."""
        if self._in_step is not None:
            step, ordinals, from_ids = self._in_step
            return f"{step[row] if isinstance(step, np.ndarray) else step}-{ordinals[row]}-{from_ids[row]}"
        number = row if self.numbers is None else int(self.numbers[row])
        return f"{self.sender}-{self.epoch}-{self.first + number}"

    def consumption(self, row: int) -> float:
        """Return the duration of one send, in seconds."""
        sent_at = self.sent_at
        return max(0.0, self.done_at - (sent_at if isinstance(sent_at, float) else float(sent_at[row])))

    def receipt(self, row: int) -> "Receipt":
        """Return the receipt of one message whose fate is known."""
        return (Receipt if self.codes[row] in _SENT else _Unsent)(self, row)


# `Receipt` is a msgspec.Struct, because C code builds one in a third of the time that an ordinary object takes. A
# receipt is never part of a reference cycle, so gc=False is safe.
class Receipt(msgspec.Struct, eq=False, gc=False):
    """The result of sending one message to one recipient: what became of the message, and why.

    A receipt is true if the message was delivered or published.
    """

    _outcome: Outcome
    _row: int

    @property
    def message_id(self) -> str:
        """Return the message's id."""
        return self._outcome.message_id(self._row)

    @property
    def fate(self) -> FateName:
        """Return what became of the message: "delivered", "published", "undeliverable" or "blocked".

        "published" means that it was sent by Redis's PUBLISH to clients that do not use this package.
        """
        return FATES[self._outcome.codes[self._row]]

    @property
    def rule(self) -> str | None:
        """Return the name of the rule that blocked the message, or None if no rule did."""
        return self._outcome.blocks.get(self._row, (None, None))[0]

    @property
    def reason(self) -> str | None:
        """Return why the message was blocked or could not be delivered; None for any other message."""
        return self._outcome.reason(self._row)

    @property
    def consumption(self) -> float:
        """Return the duration of the send, in seconds."""
        return self._outcome.consumption(self._row)

    @property
    def sent(self) -> bool:
        """Return whether the message was delivered or published."""
        return bool(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Receipt):
            return NotImplemented
        return (self.message_id, self.fate) == (other.message_id, other.fate)

    def __hash__(self) -> int:
        return hash(self.message_id)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._outcome, self._row)

    def __repr__(self) -> str:
        why = (f", rule={self.rule!r}" if self.rule else "") + (f", reason={self.reason!r}" if self.reason else "")
        return f"Receipt({self.message_id!r}, {self.fate!r}{why})"


class _Unsent(Receipt, eq=False, gc=False):
    """The receipt of a message that was neither delivered nor published, so that the receipt is false.

    This is a class of its own so that `bool` of other receipts runs no Python code.
    """

    def __bool__(self) -> bool:
        return False


def set_receipts(futures: "Sequence[asyncio.Future[Receipt]]", outcome: Outcome, first: int = 0) -> None:
    """Set the results of futures, one per row from row `first` on, to the receipts of the rows."""
    rows, unsent = range(first, first + len(futures)), outcome.codes.translate(None, _SENT)
    receipts = map(outcome.receipt, rows) if unsent else map(Receipt, repeat(outcome), rows)
    setting = map(type(futures[0]).set_result, futures, receipts)
    while True:
        try:
            deque(setting, maxlen=0)  # the deque runs the map to its end, without Python code for each future
        except InvalidStateError:  # the caller that waited for this future was cancelled
            continue
        return


class Receipts(Sequence[Receipt]):
    """The receipts of a call that sends many messages, in the order of the messages.

    Each receipt is built when it is read.
    """

    __slots__ = ("_ends", "parts")

    def __init__(self, parts: Sequence[tuple[Outcome, int, int]]) -> None:
        self.parts = list(parts)
        self._ends = np.cumsum([high - low for _, low, high in self.parts]) if self.parts else np.zeros(0, np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @overload
    def __getitem__(self, index: int) -> Receipt: ...
    @overload
    def __getitem__(self, index: slice) -> list[Receipt]: ...
    def __getitem__(self, index: int | slice) -> Receipt | list[Receipt]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = index + len(self) if index < 0 else index
        if not 0 <= row < len(self):
            raise IndexError(f"there is no receipt {index}: there are {len(self)} receipts")
        part = int(np.searchsorted(self._ends, row, side="right"))
        outcome, _, high = self.parts[part]
        return outcome.receipt(row - int(self._ends[part]) + high)

    def __iter__(self) -> Iterator[Receipt]:
        return (outcome.receipt(row) for outcome, low, high in self.parts for row in range(low, high))

    @property
    def codes(self) -> NDArray[np.uint8]:
        """Return what became of each message, as an array of uint8.

        0 is "delivered", 1 is "published", 2 is "undeliverable", 3 is "blocked", and 4 means that the fate is unknown.
        """
        if not self.parts:
            return np.zeros(0, np.uint8)
        return np.concatenate([outcome.fates[low:high] for outcome, low, high in self.parts])

    @property
    def fates(self) -> NDArray[np.str_]:
        """Return what became of each message, such as "delivered", as an array of texts."""
        return np.array(NAMES)[self.codes]

    @property
    def message_ids(self) -> list[str]:
        """Return the messages' ids."""
        return [outcome.message_id(row) for outcome, low, high in self.parts for row in range(low, high)]

    @property
    def sent(self) -> NDArray[np.bool_]:
        """Return for each message whether it was delivered or published, bool (n,)."""
        return IS_SENT[self.codes]

    def counts(self) -> dict[str, int]:
        """Return the number of sends with each fate. A fate is what became of a send, such as "delivered".

        Every fate is a key; `unknown` is a key only if some fates are not known.
        """
        found: list[int] = np.bincount(self.codes, minlength=len(NAMES)).tolist()
        return dict(zip(NAMES if found[UNKNOWN] else FATES, found, strict=False))

    def blocked_by(self) -> Counter[str]:
        """Return how many sends each rule has blocked, by the name of the rule."""
        return Counter(
            rule for outcome, low, high in self.parts for row, (rule, _) in outcome.blocks.items() if low <= row < high
        )

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas.DataFrame, where pandas is installed
        """Return a pandas.DataFrame with a row for each message.

        The columns are message_id, fate, rule, reason and consumption (how many seconds the send took).
        """
        from ray_messaging.common.tables import data_frame  # noqa: PLC0415 - pandas is optional

        return data_frame(
            {
                "message_id": self.message_ids,
                "fate": self.fates,
                "rule": [receipt.rule for receipt in self],
                "reason": [receipt.reason for receipt in self],
                "consumption": [receipt.consumption for receipt in self],
            }
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Receipts, (self.parts,)

    def __repr__(self) -> str:
        return f"Receipts({', '.join(f'{count:,} {fate}' for fate, count in self.counts().items() if count) or 'none'})"

    def _repr_html_(self) -> str:
        from ray_messaging.common.notebook import SHOWN, html_table  # noqa: PLC0415 - only notebooks need it

        troubles = np.flatnonzero(~self.sent)
        first = [self[row] for row in troubles[:SHOWN].tolist()]
        columns: dict[str, list[Any]] = {
            "message_id": [receipt.message_id for receipt in first],
            "fate": [receipt.fate for receipt in first],
            "rule": [receipt.rule for receipt in first],
            "reason": [receipt.reason for receipt in first],
        }
        return html_table(repr(self), columns, len(troubles))
