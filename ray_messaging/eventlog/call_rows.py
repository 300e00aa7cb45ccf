"""Calls that agents made with `me.remember`, which stores what a function returns: one row for each call.

The rows are of committed steps only. They come from files, and the newest ones from the server.

`result` is a call's result as JSON. JSON does not preserve all results: a tuple becomes a list. For such results,
`exact` has the result in the form of `encode_exactly`, from which an equal result can be decoded. Files of earlier
versions of this package lack the columns with tokens and costs.
"""

from collections import defaultdict
from collections.abc import Collection, Container, Iterator, Sequence, Set
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from ray_messaging.addressing.channels import AgentId
from ray_messaging.errors import InvalidQuery, LogError
from ray_messaging.eventlog.collected import NOTHING, Unwritten
from ray_messaging.eventlog.folder import Folder, steps_and_epoch
from ray_messaging.model.call_usage import CallUsage, money_of
from ray_messaging.model.calls import FAILED, UNUSED, CallRecord, decode_calls, exact_of, json_of, json_text
from ray_messaging.transports.step_values import Collected, CollectedKind

_SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("agent", pa.int64()),  # null for an id that is a str
        ("agent_name", pa.string()),
        ("function", pa.string()),
        ("arguments", pa.string()),
        ("result", pa.string()),
        ("exact", pa.binary()),
        ("seconds", pa.float64()),
        ("tries", pa.int64()),
        ("source", pa.string()),
        ("bytes", pa.int64()),
        ("by_content", pa.bool_()),
        ("key", pa.string()),
        ("model", pa.string()),
        ("input_tokens", pa.int64()),
        ("cached_tokens", pa.int64()),
        ("output_tokens", pa.int64()),
        ("cost", pa.decimal128(38, 12)),
        ("saved_tokens", pa.int64()),
        ("saved_cost", pa.decimal128(38, 12)),
    ]
)
COLUMNS = [name for name in _SCHEMA.names if name not in {"agent_name", "exact"}]
SUMMED_BY = ("agent", "step", "model", "function", "source")
_SUMS = ("input_tokens", "cached_tokens", "output_tokens", "cost", "saved_tokens", "saved_cost", "seconds", "tries")
# Row groups are small, so that a reader of one step can skip most of a file.
_ROW_GROUP_ROWS = 1024
_FORMAT = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
)


class Called(NamedTuple):
    """A call that an agent made with `me.remember`. `arguments` (None if they were not stored) and `result` are JSON.

    `source` is described in `EventLog.calls`.
    """

    function: str
    arguments: str | None
    result: str
    source: str

    def __str__(self) -> str:
        given = {"args": [], "kwargs": {}} if self.arguments is None else msgspec.json.decode(self.arguments)
        if not isinstance(given, dict):  # arguments that JSON cannot represent are stored as their repr
            given = {"args": [given], "kwargs": {}}
        texts = [json_text(each) for each in given["args"]]
        texts += [f"{name}={json_text(each)}" for name, each in given["kwargs"].items()]
        return f"{self.function}({', '.join(texts) if self.arguments is not None else '...'}) = {self.result}"


def calls_table(entries: Sequence[Collected]) -> pa.Table:
    """Return the calls that all groups made with `me.remember` in some steps, as a table for a file.

    The table is sorted by step and agent. Int ids come before str ids.
    """
    rows = [(entry.step, call) for entry in entries for call in decode_calls(entry.data)]
    rows.sort(key=lambda row: (row[0], isinstance(row[1].agent, str), row[1].agent))
    return pa.Table.from_pylist([_row(step, call) for step, call in rows], _SCHEMA)


def calls_file(table: pa.Table) -> pa.Buffer:
    """Return the content of a Parquet file for a table from `calls_table`."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=_ROW_GROUP_ROWS, write_page_checksum=True)
    return sink.getvalue()


def stored_calls(folder: Folder, unwritten: Unwritten = NOTHING) -> pa.Table:
    """Return a run's calls through `me.remember` as one table, with the columns in which files store them.

    Raises: LogError if a file cannot be read.
    """
    files, entries = unwritten.beside_files(folder, CollectedKind.CALLS)
    return pa.concat_tables([*(_read(folder, file) for file in files), calls_table(entries)])


def read_calls(folder: Folder, unwritten: Unwritten = NOTHING) -> pa.Table:
    """Return a run's calls through `me.remember`, with the columns of `EventLog.calls`.

    Raises: LogError if a file cannot be read.
    """
    table = stored_calls(folder, unwritten)
    if table["agent_name"].null_count < len(table):
        names = pc.coalesce(table["agent_name"], table["agent"].cast(pa.string()))
        table = table.set_column(table.column_names.index("agent"), "agent", names)
    return table.select(COLUMNS)


def calls_dataset(folder: Folder, unwritten: Unwritten = NOTHING) -> tuple[ds.Dataset, dict[str, str]]:
    """Return the stored calls, and {column: SQL expression} for columns that are computed from several stored ones.

    Raises: LogError if a file cannot be read.
    """
    files, entries = unwritten.beside_files(folder, CollectedKind.CALLS)
    parts: list[ds.Dataset] = [ds.dataset(calls_table(entries))]
    if files:
        parts.append(ds.dataset(files, _SCHEMA, _FORMAT, folder.filesystem))
    # Each file is read by itself, so that an error names the file.
    names = [parts[0].to_table(["agent_name"]), *(_read(folder, file, columns=["agent_name"]) for file in files)]
    named = any(table["agent_name"].null_count < len(table) for table in names)
    return ds.UnionDataset(_SCHEMA, parts), {"agent": "coalesce(agent_name, agent::varchar)"} if named else {}


def parent_calls(log_dir: str, step: int, agents: Container[AgentId]) -> dict[str, bytes]:
    """Return the results of the calls that some agents made with `me.remember` in one step, as {key: encoded result}.

    Calls that failed are left out, and so are calls whose results the step did not use.

    Args: `log_dir` is the log folder of an earlier run, `step` a step of that run.

    Raises: LogError if the folder is not there, or cannot be read.
    """
    folder = Folder(log_dir)
    if not folder.exists():
        raise LogError(
            f"folder {log_dir}, which has the results of the earlier run's calls, is missing: put it back; without it "
            "all calls would be made again",
            path=log_dir,
        )
    return {
        row["key"]: exact_of(row["result"], row["exact"])
        for row in _rows_of(folder, NOTHING.beside_files(folder, CollectedKind.CALLS)[0], {step})
        # An unused call may have been made for an earlier step, in which the same key had another result.
        if row["agent"] in agents and row["source"] not in {FAILED, UNUSED}
    }


def calls_of(
    folder: Folder, unwritten: Unwritten, hands: Collection[tuple[AgentId, int]]
) -> dict[tuple[AgentId, int], list[Called]]:
    """Return the calls that agents made with `me.remember` in some steps, as {(agent, step): calls}.

    Calls whose results their step did not use are left out.

    Args: `hands` has the wanted pairs (agent, step).

    Raises: LogError if a file cannot be read.
    """
    files, entries = unwritten.beside_files(folder, CollectedKind.CALLS)
    found = defaultdict[tuple[AgentId, int], list[Called]](list)
    steps = {step for _, step in hands}
    unstored = calls_table([entry for entry in entries if entry.step in steps])
    for row in _rows_of(folder, files, steps, unstored):
        if (hand := (row["agent"], row["step"])) in hands and row["source"] != UNUSED:
            found[hand].append(Called(row["function"], row["arguments"], row["result"], row["source"]))
    return found


def _rows_of(folder: Folder, files: Sequence[str], steps: Set[int], *more: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield all calls with `me.remember` of some steps as dicts, from files and from the tables `more`.

    The `agent` of a dict is an int or a str.
    """
    spans = ((file, *steps_and_epoch(file)[:2]) for file in files)
    stored = (_read(folder, file, step) for file, low, high in spans for step in sorted(steps) if low <= step <= high)
    for row in (row for table in (*more, *stored) for row in table.to_pylist()):
        yield row | ({} if row["agent_name"] is None else {"agent": row["agent_name"]})


def _read(folder: Folder, file: str, step: int | None = None, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rows of a file. With `step`, return only the rows of this step; with `columns`, only these columns."""
    try:
        stored = ds.dataset(file, _SCHEMA, _FORMAT, folder.filesystem)
        return stored.to_table(columns, filter=None if step is None else ds.field("step") == step)
    except (OSError, pa.ArrowInvalid) as error:
        raise folder.damaged(file, error) from error


def _row(step: int, call: CallRecord) -> dict[str, Any]:
    result = bytes(call.result)
    text, exact = json_of(result)
    named, used = isinstance(call.agent, str), call.usage
    return {
        "step": step,
        "agent": None if named else call.agent,
        "agent_name": call.agent if named else None,
        "function": call.function,
        "arguments": call.arguments,
        "result": text,
        "exact": exact,
        "seconds": call.seconds,
        "tries": call.tries,
        "source": call.source,
        "bytes": len(result),
        "by_content": call.by_content,
        "key": call.key,
        **({} if used is None else _used(used)),
        **({} if call.saved is None else {"saved_tokens": call.saved.tokens, "saved_cost": _cost_of(call.saved)}),
    }


def _used(used: CallUsage) -> dict[str, Any]:
    return {
        "model": used.model,
        "input_tokens": used.input,
        "cached_tokens": used.cached,
        "output_tokens": used.output,
        "cost": _cost_of(used),
    }


def _cost_of(used: CallUsage) -> Decimal | None:
    return None if used.cost is None else money_of(used.cost)


def summed_calls(calls: pa.Table, by: Sequence[str]) -> pa.Table:
    """Count calls, and sum their tokens, costs, seconds and tries, for each combination of values in the columns `by`.

    Raises: InvalidQuery if `by` is empty, or names a column that is not in SUMMED_BY.
    """
    if not by or any(name not in SUMMED_BY for name in by):
        text = f"by={list(by)!r} must be among the columns {', '.join(SUMMED_BY)}"
        raise InvalidQuery(text, field="by", value=by)
    sums = [(name, "sum") for name in _SUMS]
    found = calls.group_by([*by]).aggregate([([], "count_all"), *sums])
    names = ("calls" if name == "count_all" else name.removesuffix("_sum") for name in found.column_names)
    found = found.rename_columns([*names])
    return found.select([*by, "calls", *_SUMS]).sort_by([(name, "ascending") for name in by])
