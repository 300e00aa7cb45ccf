"""Check that every send in the log has exactly one fate. The check needs only a limited amount of memory.

The log's rows are partitioned into temporary files by a hash of the message id. Each file is small enough to be sorted
in memory. If a message seems to be wrong, its rows are read again, and compared by their ids and not by hashes. So a
hash collision is never reported as an error.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ray_messaging.errors import Unbalanced
from ray_messaging.eventlog.folder_records import absent_rows, read_account
from ray_messaging.eventlog.reading.expansion import NEEDED, Expansion
from ray_messaging.eventlog.reading.filters import Filters
from ray_messaging.eventlog.reading.results import plain
from ray_messaging.eventlog.reading.scan import View, in_threads, scan
from ray_messaging.model.fates import FATES

PARTITION_ROWS = 1_000_000  # this many rows take 40 MB as records, and more while they are sorted
OFFENDERS = 100
# The most temporary files of each of two kinds (by message and by place). Many systems allow a process only 1,024 open
# files.
_MOST_FILES = 200
_SUSPECTS = 10 * OFFENDERS

_COLUMNS = ("message_id", "to_id", "to_name", "audience", "pairs", "mailbox", "fate", "noted", "entry", "row")
_NO_FATE = len(FATES)
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_SEND = np.dtype([("message", "<u8"), ("mailbox", "<u8"), ("fate", "u1")])
_PLACE = np.dtype([("place", "<u8"), ("message", "<u8")])
# The hash of a text is the sum of one random number per byte. The number depends on the byte and on its place in the
# text, modulo this many places.
_HASHED_PLACES = 256


@dataclass(frozen=True, slots=True)
class Balance:
    """The result of `EventLog.balance` for a log without faults: the numbers of sends, of rows, and of sends by fate.

    A broadcast counts as one send to each of its hearers.
    """

    sends: int
    rows: int
    fates: dict[str, int]


def balance(view: View, *, partition_rows: int = PARTITION_ROWS, expand: bool = False) -> Balance:
    """Check the log as `EventLog.balance` does, with about `partition_rows` rows in memory at a time.

    If the log has more than _MOST_FILES times this many rows, more rows are in memory at a time.
    """
    missing = [*read_account(view.folder).missing]
    if absent := absent_rows(view.folder, view.segments, view.end):
        missing.append(absent)
    if missing:
        raise Unbalanced("the log is not complete: " + "; ".join(missing), offenders=[])
    partitions = min(_MOST_FILES, max(1, -(-view.end // partition_rows)))
    rows, fates, suspects = 0, np.zeros(_NO_FATE + 1, np.int64), np.zeros(0, np.uint64)
    with ExitStack() as files:
        by_message = _Partitions(files, _SEND, "message", partitions)
        by_place = _Partitions(files, _PLACE, "place", partitions)
        for sends, places, more in in_threads(_records, _scan(view, expand=expand)):
            rows += len(sends)
            by_message.put(sends)
            by_place.put(places)
            fates += more
        for records in by_message.arrays():
            wrong, counted = _check_sends(records)
            fates += counted
            suspects = _first([suspects, wrong])
        for records in by_place.arrays():
            suspects = _first([suspects, _with_equal_positions(records)])
    sent = int(fates.sum())
    if len(suspects):
        _check_suspects(view, suspects, sent, expand=expand)
    return Balance(sent, rows, dict(zip(FATES, fates.tolist(), strict=False)))


def _scan(view: View, *, expand: bool) -> Iterator[pa.Table]:
    """Yield all rows of the log. With `expand`, a broadcast becomes one row for each hearer."""
    if not expand:
        yield from scan(view, Filters(), _COLUMNS, raw=True)
        return
    expansion = Expansion(view.folder)
    for part in scan(view, Filters(), [*dict.fromkeys([*_COLUMNS, *NEEDED])]):
        yield from expansion.expanded(part, Filters())


def _messages(part: pa.Table) -> NDArray[np.uint64]:
    """Return, for each row, a hash that identifies its send.

    For a direct message this is the hash of the message id. For a broadcast the hash includes the hearer, or if the row
    has no hearer, the row's place in its stream (mailbox, entry and row).
    """
    messages = hashes(part["message_id"])
    rows = np.flatnonzero(part["audience"].is_valid().to_numpy())
    if len(rows):
        some = part.take(pa.array(rows))
        ends = some["to_id"].fill_null(0).to_numpy().astype(np.uint64) * _SPREAD + hashes(some["to_name"])
        nobody = pc.and_(some["to_id"].is_null(), some["to_name"].is_null()).to_numpy()
        place = (hashes(some["mailbox"]) ^ hashes(some["entry"])) + some["row"].to_numpy().astype(np.uint64)
        messages[rows] += np.where(nobody, place, ends) * _SPREAD + _SPREAD
    return messages


def _records(part: pa.Table) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.int64]]:
    """Return three arrays about some rows: a send for each row, the row's place, and the other sends by fate.

    The place of a row is where it was read: the mailbox, the entry of the mailbox's stream, the number of the row in
    the entry, and whether the entry was a log note (which says what rules did with messages). A row of a broadcast with
    n hearers stands for n sends. One of them is in the first array. The third array counts the other n - 1 by fate.
    """
    part = part.combine_chunks()
    messages, mailboxes, entries = _messages(part), hashes(part["mailbox"]), hashes(part["entry"])
    known = {fate: code for code, fate in enumerate(FATES)}
    fates = part["fate"].chunk(0)
    fates = fates if pa.types.is_dictionary(fates.type) else fates.dictionary_encode()
    codes = np.array([known.get(fate, _NO_FATE) for fate in fates.dictionary.to_pylist()], np.uint8)
    sends = np.empty(len(part), _SEND)
    sends["message"], sends["mailbox"], sends["fate"] = messages, mailboxes, codes[fates.indices.to_numpy()]
    sends["fate"][_unheard(part)] = _NO_FATE
    places = np.empty(len(part), _PLACE)
    noted = part["noted"].to_numpy().astype(np.uint64)
    row = part["row"].to_numpy().astype(np.uint64)
    # Mailbox, entry and row are each multiplied by a different odd number, so that they cannot cancel each other out.
    mixed = mailboxes * np.uint64(0x9E3779B97F4A7C15) + entries * np.uint64(0xC2B2AE3D27D4EB4F)
    places["place"] = mixed + (row * np.uint64(2) + noted) * np.uint64(0x165667B19E3779F9)
    places["message"] = messages
    more = np.zeros(_NO_FATE + 1, np.int64)
    pairs = part["pairs"].fill_null(1).to_numpy()
    folded = np.flatnonzero(pairs != 1)
    if len(folded):
        nobody = pc.and_(part["to_id"].is_null(), part["to_name"].is_null()).to_numpy()[folded]
        # In an expanded log, one row of a broadcast has become a row for each hearer. All these rows have the same
        # place, which is not a fault. So the hash of each send is added to the place, to make the places differ.
        places["place"][folded[~nobody]] += messages[folded[~nobody]]
        np.add.at(more, sends["fate"][folded[nobody]], pairs[folded[nobody]] - 1)
    return sends, places, more


def _unheard(part: pa.Table) -> NDArray[np.bool_]:
    """Return, for each row, whether it is a broadcast with neither a hearer nor a number of hearers."""
    nobody = pc.and_(part["to_id"].is_null(), part["to_name"].is_null())
    unheard = pc.and_(pc.and_(part["audience"].is_valid(), part["pairs"].is_null()), nobody)
    return np.asarray(unheard.combine_chunks().to_numpy(zero_copy_only=False))


class _Partitions:
    """Temporary files of records, which are partitioned by the hash in the field `key`, and read file by file."""

    def __init__(self, stack: ExitStack, dtype: np.dtype[Any], key: str, partitions: int) -> None:
        self._dtype, self._key = dtype, key
        files = (TemporaryFile(prefix="ray_messaging-balance-") for _ in range(partitions))  # noqa: SIM115 - the stack closes the files
        self._files = [stack.enter_context(file) for file in files]

    def put(self, records: NDArray[Any]) -> None:
        partitions = len(self._files)
        # The hash is a product, whose high bits are mixed better than its low bits.
        partition = (records[self._key] >> np.uint64(33)) % np.uint64(partitions)
        order = np.argsort(partition, kind="stable")
        ends = np.cumsum(np.bincount(partition.astype(np.intp), minlength=partitions))[:-1]
        for file, share in zip(self._files, np.split(records[order], ends), strict=True):
            file.write(share.tobytes())

    def arrays(self) -> Iterator[NDArray[Any]]:
        for file in self._files:
            file.seek(0)
            yield np.frombuffer(file.read(), self._dtype)


def _first(messages: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Join arrays of hashes of messages that seem to be at fault; return the distinct hashes.

    At most _SUSPECTS + 1 hashes are returned. One more than _SUSPECTS shows that some messages will not be examined.
    """
    return np.unique(np.concatenate(messages))[: _SUSPECTS + 1]


def _check_sends(records: NDArray[Any]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hashes of messages that have two fates, no fate, or two rows for one mailbox.

    Also return the number of sends by fate.
    """
    records = records[np.lexsort((records["mailbox"], records["message"]))]
    messages, fates = records["message"], records["fate"]
    again = messages[1:] == messages[:-1]
    twice = again & (records["mailbox"][1:] == records["mailbox"][:-1])
    differ = again & (fates[1:] != fates[:-1])
    wrong = np.concatenate([messages[1:][twice | differ], messages[fates == _NO_FATE]])
    first = np.ones(len(records), np.bool_)
    first[1:] = ~again
    return wrong, np.bincount(fates[first], minlength=_NO_FATE + 1)


def _with_equal_positions(records: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the hashes of messages whose rows claim the same place in a stream, which only a fault can cause."""
    records = records[np.argsort(records["place"])]
    same = records["place"][1:] == records["place"][:-1]
    return np.concatenate([records["message"][1:][same], records["message"][:-1][same]])


def _check_suspects(view: View, suspects: NDArray[np.uint64], sends: int, *, expand: bool) -> None:
    """Compare the rows of suspected messages by ids, not by hashes; raise Unbalanced if one really is at fault.

    Args: `sends` is the number of sends in the log, for the error's text.
    """
    wanted = suspects[:_SUSPECTS]
    rows = [row for part in _scan(view, expand=expand) for row in _rows_of(part, wanted)]
    by_message: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_message[_name(row)].append(row)
    places = Counter(map(_place, rows))
    wrong = {name: why for name, found in by_message.items() if (why := _violation(found, places))}
    if not wrong:
        return
    offenders = list(wrong)[:OFFENDERS]
    raise Unbalanced(
        f"{'at least ' * (len(suspects) > len(wanted))}{len(wrong):,} of {sends:,} sends did not end in exactly one "
        "fate: "
        + "; ".join(f"{name} {wrong[name]}" for name in offenders[:3])
        + (f"; and {len(wrong) - 3:,} more" if len(wrong) > 3 else "")
        + ". Inspect them by log.query(...) with internal=True: the columns mailbox, entry and row say "
        "where each record was read",
        offenders=offenders,
    )


def _rows_of(part: pa.Table, wanted: NDArray[np.uint64]) -> list[dict[str, Any]]:
    part = part.combine_chunks()
    found: list[dict[str, Any]] = plain(part.filter(pa.array(np.isin(_messages(part), wanted)))).to_pylist()
    return found


def _name(row: dict[str, Any]) -> str:
    """Return a name for a send, by which people can find it: its message id.

    For a broadcast, the hearer or the stream entry is added.
    """
    if row["audience"] is None:
        return str(row["message_id"])
    hearer = _hearer(row)
    where = f"in entry {row['entry']} of {row['mailbox']}" if hearer is None else f"to {hearer}"
    return f"{row['message_id']} {where}"


def _hearer(row: dict[str, Any]) -> int | str | None:
    found: int | str | None = row["to_id"] if row["to_name"] is None else row["to_name"]
    return found


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    hearer = (row["to_id"], row["to_name"]) if row["pairs"] is not None else None
    return row["mailbox"], row["noted"], row["entry"], row["row"], hearer


def _violation(rows: list[dict[str, Any]], places: Counter[tuple[Any, ...]]) -> str:
    if any(row["audience"] is not None and row["pairs"] is None and _hearer(row) is None for row in rows):
        return "has no hearers in the log"
    fates = sorted({row["fate"] for row in rows})
    if len(fates) > 1:
        return f"is {' and '.join(fates)}"
    if fates[0] not in FATES:
        return f"has the fate {fates[0]!r}, which does not exist"
    mailbox, most = Counter(row["mailbox"] for row in rows).most_common(1)[0]
    if most > 1:
        return f"is {most} times in the log" + (f" for mailbox {mailbox}" if mailbox else "")
    if any(places[_place(row)] > 1 for row in rows):
        return "has the same mailbox, entry and row as another message"
    return ""


@cache
def _table() -> NDArray[np.uint64]:
    """Return random numbers, uint64 (places * 256,): one for each place in a text and each value of the byte there.

    They are the same in every process, so that hashes of several processes can be compared.
    """
    return np.random.default_rng(20240607).integers(1, 2**64, _HASHED_PLACES * 256, np.uint64)


def hashes(column: pa.ChunkedArray | pa.Array) -> NDArray[np.uint64]:
    """Return a hash of each text, uint64 (n,); null gives 0. Different texts rarely have equal hashes."""
    if isinstance(column, pa.ChunkedArray):
        parts = [hashes(chunk) for chunk in column.chunks]
        return np.concatenate(parts) if parts else np.zeros(0, np.uint64)
    array = column
    if pa.types.is_dictionary(array.type):
        # A null gets the last index, where a hash of 0 is appended.
        known: NDArray[np.uint64] = np.append(hashes(array.dictionary), np.uint64(0))
        codes: NDArray[np.intp] = array.indices.fill_null(len(known) - 1).to_numpy(zero_copy_only=False)
        return known[codes]
    found = _of_bytes(array.fill_null(""))
    if array.null_count:
        found[array.is_null().to_numpy(zero_copy_only=False)] = 0
    return found


def _of_bytes(array: pa.Array) -> NDArray[np.uint64]:
    _, offsets_buffer, data = array.buffers()
    dtype = np.int64 if pa.types.is_large_string(array.type) else np.int32
    found = np.zeros(len(array), np.uint64)
    if not len(array) or data is None:
        return found
    offsets = np.frombuffer(offsets_buffer, dtype)[array.offset : array.offset + len(array) + 1]
    lengths = np.diff(offsets)
    used = lengths > 0  # `reduceat` would give an empty text the first byte of the next one
    starts = offsets[:-1][used]
    text = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]
    places = np.arange(offsets[0], offsets[-1], dtype=dtype) - np.repeat(starts, lengths[used])
    if len(starts):
        found[used] = np.add.reduceat(_table()[((places & (_HASHED_PLACES - 1)) << 8) | text], starts - offsets[0])
    return found
