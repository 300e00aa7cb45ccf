"""SQL queries of the log, by DuckDB. It reads only the files and columns that a query needs, and can read nothing else.

DuckDB's own settings forbid access to other files, extensions and changes of the settings. Statements other than SELECT
are refused before DuckDB runs them. The memory of a query is limited: data that do not fit are written to a temporary
folder. Only the result must fit into memory.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from ray_messaging.errors import InvalidQuery
from ray_messaging.eventlog.call_rows import COLUMNS as CALL_COLUMNS
from ray_messaging.eventlog.call_rows import calls_dataset
from ray_messaging.eventlog.log_schema import POSITION, SCHEMA, channel_head, plain_name, typed_names
from ray_messaging.eventlog.reading.filters import MICROSECONDS, Filters, check_count, check_text, invalid
from ray_messaging.eventlog.reading.results import COLUMNS, typed_schema
from ray_messaging.eventlog.reading.scan import View, damaged_file, datasets, has_names

_READS = ("SELECT", "EXPLAIN")
_AGAIN_S = 0.1  # seconds between two interrupts of a query that takes too long
_LONGEST = 300  # how many characters of an error of DuckDB are shown at most
_SETTINGS = {
    "enable_external_access": "false",
    "python_enable_replacements": "false",  # otherwise a query could use Python variables as tables
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "memory_limit": "2GB",
}
_SUM = pa.decimal128(38, 0)  # the type that DuckDB gives to a sum of whole numbers
_DAY_US = 24 * 3600 * MICROSECONDS


def sql(
    view: View,
    *,
    query: str,
    limit: int | None = None,
    timeout_s: float | None = None,
    temporary_files: bool = True,
) -> pa.Table:
    """Return the result of a SQL query over TABLES, see `EventLog.sql`; raise LogError if a file is damaged."""
    try:
        import duckdb  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise ImportError("log.sql() needs duckdb: pip install 'ray-messaging[sql]'") from error
    if check_text("query", query) is None:
        raise invalid("query", query, "must be a str with a SQL query")
    most = check_count("limit", limit, at_least=0)
    with (
        _connection(duckdb, view, temporary_files=temporary_files) as (connection, tables),
        _interrupted(connection, timeout_s),
    ):
        try:
            _check(query, connection.extract_statements(query))
            found = connection.sql(query)
            return _natural((found if most is None else found.limit(most)).to_arrow_table())
        except duckdb.InterruptException as error:
            raise _refused(query, f"it took longer than {timeout_s:g} s: read fewer rows") from error
        except duckdb.Error as error:
            of_reading = isinstance(error, duckdb.InvalidInputException | duckdb.IOException)
            if of_reading and (damaged := damaged_file(view.folder, tables)) is not None:
                raise damaged from error
            said = " ".join(str(error).partition("\n\n")[0].split())[:_LONGEST]
            raise _refused(query, f"{said}; a query sees only the tables {', '.join(TABLES)}") from error


@contextmanager
def _connection(
    duckdb: Any,  # noqa: ANN401 - a module
    view: View,
    *,
    temporary_files: bool,
) -> Iterator[tuple[Any, list[ds.Dataset]]]:
    """Open a connection to DuckDB that has only the tables of a log; yield it, and the datasets of these tables."""
    with TemporaryDirectory(prefix="ray_messaging-sql-") as folder, ExitStack() as stack:
        settings = _SETTINGS | {"temp_directory": folder if temporary_files else ""}
        connection = stack.enter_context(duckdb.connect(":memory:", config=settings))
        tables = []
        for name, table_of in TABLES.items():
            rows, columns = table_of(view)
            tables.append(rows)
            connection.register(f"stored_{name}", rows)
            selected = f"select {', '.join(columns)} from stored_{name}"  # noqa: S608 - names, quoted
            connection.execute(f"create view {name} as {selected}")
        connection.execute("set TimeZone = 'UTC'")
        connection.execute("set lock_configuration = true")
        yield connection, tables


@contextmanager
def _interrupted(connection: Any, timeout_s: float | None) -> Iterator[None]:  # noqa: ANN401 - DuckDB's
    """Interrupt the connection's query if it takes longer than `timeout_s`."""
    if timeout_s is None:
        yield
        return
    ended = Event()

    def interrupt() -> None:
        wait_s = timeout_s
        while not ended.wait(wait_s):
            connection.interrupt()
            wait_s = _AGAIN_S  # DuckDB forgets an interrupt that comes between two phases of a query.

    timer = Thread(target=interrupt, name="ray_messaging sql timeout", daemon=True)
    timer.start()
    try:
        yield
    finally:
        ended.set()
        timer.join()


def _check(query: str, statements: Sequence[Any]) -> None:
    """Raise InvalidQuery unless there is exactly one statement, and it only reads."""
    kinds = [str(statement.type).rpartition(".")[2] for statement in statements]
    if len(kinds) != 1:
        raise _refused(query, f"it has {len(kinds)} statements: write exactly one")
    if kinds[0] not in _READS:
        raise _refused(query, f"{kinds[0]} is not allowed, because it may change data: write a SELECT")


def _refused(query: str, why: str) -> InvalidQuery:
    return InvalidQuery(f"the log cannot answer this SQL: {why}", field="query", value=query)


def _natural(table: pa.Table) -> pa.Table:
    """Return a table in which sums of whole numbers are int64, if they fit, and intervals are durations.

    An interval with months stays an interval.
    """
    for place, field in enumerate(table.schema):
        column = table.column(place)
        if field.type == _SUM:
            with suppress(pa.ArrowInvalid):
                table = table.set_column(place, field.name, column.cast(pa.int64()))
        elif field.type == pa.month_day_nano_interval():
            found = column.to_pylist()
            if not any(each.months for each in found if each is not None):
                spans = [None if each is None else each.days * _DAY_US + each.nanoseconds // 1000 for each in found]
                table = table.set_column(place, field.name, pa.array(spans, pa.duration("us")))
    return table


def _messages(view: View) -> tuple[ds.Dataset, list[str]]:
    """Return a dataset of all messages, and the SQL expressions for the columns of the table `messages`."""
    parts = [*datasets(view, Filters())]
    kinds = {field.name: field.type for field in _comparable([part.schema for part in parts])}
    # By the name of each typed column, the names that it has in the files: one for each type of its values.
    names: dict[str, dict[str, None]] = {name: {} for name in kinds}
    for name in (name for part in parts for name in typed_names(part.schema.names) if plain_name(name) in kinds):
        names[plain_name(name)][name] = None
    stored = [SCHEMA.field(name).with_nullable(True) for name in SCHEMA.names]
    typed = [pa.field(name, kinds[plain]) for plain, several in names.items() for name in several]
    schema = pa.schema([*stored, *typed, POSITION.with_nullable(True)])
    columns = {name: _quoted(name) for name in COLUMNS if name not in {"from_name", "to_name"}}
    if has_names(view, Filters()):
        columns |= {f"{end}_id": f"coalesce({end}_name, {end}_id::varchar)" for end in ("from", "to")}
    heads = [head for part in parts for head in channel_head(part.schema).values()]
    if heads:  # these beginnings of channels are all equal, because the files belong to one experiment
        head = heads[0].replace("'", "''")
        columns["channel"] = f"coalesce(channel, '{head}' || coalesce(to_name, to_id::varchar) || ':' || subtopic)"
    columns |= {plain: f"coalesce({', '.join(map(_quoted, several))})" for plain, several in names.items()}
    columns[POSITION.name] = _quoted(POSITION.name)
    selected = [f"{made} as {_quoted(name)}" for name, made in columns.items()]
    return ds.UnionDataset(schema, [_as(part, schema) for part in parts]), selected


def _calls(view: View) -> tuple[ds.Dataset, list[str]]:
    """Return a dataset of calls by `me.remember`, and the SQL expressions for the columns of the table `calls`."""
    stored, made = calls_dataset(view.folder, view.collected)
    return stored, [f"{made.get(name, _quoted(name))} as {_quoted(name)}" for name in CALL_COLUMNS]


def _comparable(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return the columns of typed payloads, without those that are vectors in some rows and single values in others."""
    found = typed_schema(schemas)
    fields = (schema.field(name) for schema in schemas for name in typed_names(schema.names))
    kinds = {plain_name(field.name): field.type for field in fields if pa.types.is_nested(field.type)}
    return pa.schema([field for field in found if field.type == kinds.get(field.name, field.type)])


def _as(part: ds.Dataset, schema: pa.Schema) -> ds.Dataset:
    """Return a dataset with the columns of a schema. A column that the given dataset lacks has only nulls."""
    if isinstance(part, ds.FileSystemDataset):
        return ds.FileSystemDataset([*part.get_fragments()], schema, part.format, part.filesystem)
    table = part.to_table()
    columns = [
        _cast(table[f.name], f) if f.name in table.column_names else pa.nulls(len(table), f.type) for f in schema
    ]
    return ds.dataset(pa.table(columns, schema=schema))


def _cast(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        name = plain_name(field.name)
        raise InvalidQuery(
            f"the log cannot answer any SQL now, because column {name!r} has numbers of several types, and "
            f"{field.type} cannot represent some of them exactly ({error}): use `log.query`, which returns texts",
            field="query",
            value=name,
        ) from error


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# The tables for queries. Each function returns a dataset, and the SQL expressions that make the table's columns from
# it.
TABLES: dict[str, Callable[[View], tuple[ds.Dataset, list[str]]]] = {"messages": _messages, "calls": _calls}
