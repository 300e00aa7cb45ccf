"""Check that every send in the log ended in exactly one fate, in bounded memory.

The rows of a large log are partitioned by a hash into temporary files, each small enough to sort in memory. Rows of
equal hashes are then compared by their texts, so that a hash collision is never reported as an error.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from numpy.typing import NDArray

from ray_messaging.errors import Unbalanced
from ray_messaging.eventlog.reading.expansion import NEEDED, Expansion
from ray_messaging.eventlog.reading.filters import Filters
from ray_messaging.eventlog.reading.results import plain
from ray_messaging.eventlog.reading.scan import View, in_threads, scan
from ray_messaging.eventlog.records import read_account
from ray_messaging.receipt import FATES

PARTITION_ROWS = 500_000  # about 200 MB in memory
OFFENDERS = 100
_MOST_WRONG = 10 * OFFENDERS
_MOST_FILES = 200  # a common limit per process is 1,024

_OF_SENDS = ("message_id", "to_id", "to_name", "audience", "pairs", "mailbox", "fate", "entry")
_OF_PLACES = (*_OF_SENDS, "noted", "row")
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Balance:
    """Result for a balanced log: its sends, its rows, and the number of sends by fate.

    A broadcast counts as one send to each of its hearers.
    """

    sends: int
    rows: int
    fates: dict[str, int]
    duplicates: int = 0


def balance(view: View, *, partition_rows: int = PARTITION_ROWS, expand: bool = False) -> Balance:
    """Return the balance of the log.

    Args: partition_rows is the approximate number of rows in memory; with `expand` each hearer of each broadcast is
    checked.

    Raises: Unbalanced for sends with two fates, repeated rows, or rows known to be missing.
    """
    missing = read_account(view.folder).missing
    if missing:
        raise Unbalanced("the log is not complete: " + "; ".join(missing), offenders=[])
    partitions = min(_MOST_FILES, max(1, -(-view.end // partition_rows)))
    rows, fates, wrong = 0, Counter[str](), dict[str, str]()
    for sends in _partitions(in_threads(_sends, _scan(view, _OF_SENDS, expand=expand)), "send", partitions):
        rows += len(sends)
        fates += _check_sends(sends, wrong)
    for places in _partitions(in_threads(_places, _scan(view, _OF_PLACES, expand=expand)), "place", partitions):
        _check_places(places, wrong)
    if wrong:
        raise _unbalanced(wrong, fates.total())
    return Balance(fates.total(), rows, {fate: fates[fate] for fate in FATES})


def _scan(view: View, columns: Iterable[str], *, expand: bool) -> Iterator[pa.Table]:
    """Yield all rows of the log; with `expand`, each broadcast as one row for each of its hearers."""
    if not expand:
        yield from scan(view, Filters(), [*columns], raw=True)
        return
    expansion = Expansion(view.folder)
    for part in scan(view, Filters(), [*dict.fromkeys([*columns, *NEEDED])]):
        yield from expansion.expanded(part, Filters())


def _sends(part: pa.Table) -> pa.Table:
    """Return the sends of some rows.

    `send` names each send for people; `weight` is the number of hearers its row stands for.
    """
    part = plain(part)
    of_many = pc.and_(part["pairs"].is_valid(), _hearers(part).is_null())
    weights = pc.if_else(of_many, part["pairs"], 1)
    columns = {"send": _names(part), "mailbox": part["mailbox"], "fate": part["fate"], "weight": weights}
    return pa.table(columns)


def _places(part: pa.Table) -> pa.Table:
    """Return the sends of some rows, each with its place in a stream. The hearers of one row have one place each."""
    part = plain(part)
    hearers = pc.if_else(part["pairs"].is_valid(), _hearers(part).fill_null(""), "")
    place = [part["entry"], part["row"].cast(pa.string()), part["noted"].cast(pa.string()), hearers]
    return pa.table(
        {
            "send": _names(part),
            "place": pc.binary_join_element_wise(part["mailbox"].fill_null(""), *place, "\n"),
        }
    )


def _hearers(part: pa.Table) -> pa.ChunkedArray:
    return pc.coalesce(part["to_name"], part["to_id"].cast(pa.string()))


def _names(part: pa.Table) -> pa.ChunkedArray:
    """Return the name of each send.

    That is the message's id. The name of a broadcast also has its hearer, or, if the row stands for many hearers, the
    row's entry and mailbox.
    """
    messages = part["message_id"]
    if part["audience"].null_count == len(part):
        return messages
    hearers = _hearers(part)
    frames = pc.binary_join_element_wise(
        messages, " in entry ", part["entry"], " of ", part["mailbox"].fill_null("no mailbox"), ""
    )
    told = pc.if_else(hearers.is_null(), frames, pc.binary_join_element_wise(messages, " to ", hearers, ""))
    return pc.if_else(part["audience"].is_valid(), told, messages)


def _partitions(tables: Iterable[pa.Table], key: str, partitions: int) -> Iterator[pa.Table]:
    """Yield the rows of some tables again, in parts, with a hash of the column `key`.

    All rows with the same hash are in the same part.
    """
    numbered = (_numbered(table, key, partitions) for table in tables)
    if partitions == 1:
        yield from [pa.concat_tables(found)] if (found := [*numbered]) else []
        return
    with TemporaryDirectory(prefix="ray_messaging-balance-") as folder:
        first = next(numbered)
        batches = (batch for table in chain([first], numbered) for batch in table.to_batches())
        folders = ds.partitioning(pa.schema([first.schema.field("part")]))
        ds.write_dataset(batches, folder, schema=first.schema, format="feather", partitioning=folders)
        for path in Path(folder).iterdir():
            yield ds.dataset(path, format="feather").to_table()


def _numbered(table: pa.Table, key: str, partitions: int) -> pa.Table:
    hashes = _hashes(table[key])
    # The high bits: the low bits of a product are less mixed.
    part = (hashes >> np.uint64(33)) % np.uint64(partitions)
    return table.append_column("hash", pa.array(hashes)).append_column("part", pa.array(part))


def _hashes(texts: pa.ChunkedArray) -> NDArray[np.uint64]:
    """Return a hash of each text."""
    texts = texts.combine_chunks()
    width = max(1, -(-(pc.max(pc.binary_length(texts)).as_py() or 0) // 8))
    padded = pc.ascii_rpad(texts, 8 * width, padding="\0")
    words = np.frombuffer(padded.buffers()[2], np.uint64, len(texts) * width).reshape(-1, width) * _ODD
    words ^= words >> np.uint64(29)
    found: NDArray[np.uint64] = words @ np.cumprod(np.full(width, _ODD), dtype=np.uint64)
    return found


def _repeated(hashes: pa.ChunkedArray) -> pa.Array:
    """Return, for each row, whether another row has the same hash."""
    found = hashes.to_numpy()
    ordered = np.sort(found)
    return pa.array(np.isin(found, ordered[1:][ordered[1:] == ordered[:-1]]))


def _check_sends(sends: pa.Table, wrong: dict[str, str]) -> Counter[str]:
    """Add to `wrong` the sends that have two fates, no fate, or two rows for one mailbox.

    Return the number of sends by fate.
    """
    doubtful = pc.or_(_repeated(sends["hash"]), pc.invert(pc.is_in(sends["fate"], pa.array(FATES))))
    weights = sends.filter(pc.invert(doubtful)).group_by("fate").aggregate([("weight", "sum")])
    fates = Counter(dict(zip(weights["fate"].to_pylist(), weights["weight_sum"].to_pylist(), strict=True)))
    by_send: dict[str, list[dict[str, Any]]] = {}
    for row in sends.filter(doubtful).to_pylist():
        by_send.setdefault(row["send"], []).append(row)
    for send, rows in by_send.items():
        fates[rows[0]["fate"]] += rows[0]["weight"]
        if (why := _violation(rows)) and len(wrong) <= _MOST_WRONG:
            wrong[send] = why
    return fates


def _violation(rows: list[dict[str, Any]]) -> str:
    fates = sorted({row["fate"] for row in rows})
    if len(fates) > 1:
        return f"is {' and '.join(fates)}"
    if fates[0] not in FATES:
        return f"has the fate {fates[0]!r}, which does not exist"
    mailbox, most = Counter(row["mailbox"] for row in rows).most_common(1)[0]
    return f"is {most} times in the log" + (f" for mailbox {mailbox}" if mailbox else "") if most > 1 else ""


def _check_places(places: pa.Table, wrong: dict[str, str]) -> None:
    """Add to `wrong` the sends that have the same place in a stream as another send."""
    doubtful = places.filter(_repeated(places["hash"])).to_pylist()
    rows_at = Counter(row["place"] for row in doubtful)
    for row in doubtful:
        if rows_at[row["place"]] > 1 and len(wrong) <= _MOST_WRONG:
            wrong.setdefault(row["send"], "stands where another message stands, too")


def _unbalanced(wrong: dict[str, str], sends: int) -> Unbalanced:
    known = min(len(wrong), _MOST_WRONG)
    offenders = [*wrong][:OFFENDERS]
    return Unbalanced(
        f"{'at least ' * (len(wrong) > known)}{known:,} of {sends:,} sends did not end in exactly one fate: "
        + "; ".join(f"{name} {wrong[name]}" for name in offenders[:3])
        + ("; ..." if len(wrong) > 3 else "")
        + ". Inspect them by log.query(...) with internal=True: mailbox, entry and row are each row's "
        "source",
        offenders=offenders,
    )
