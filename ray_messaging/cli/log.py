"""The event log on the command line: `ray-messaging log stats|query|sql|thread|why|tail|export|diff|...`."""

from collections import deque
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Raw
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from ray_messaging.cli.log_options import Target, open_log, read_id, with_fields
from ray_messaging.cli.log_show import (
    difference_line,
    line_of,
    show_difference,
    show_rows,
    show_run,
    show_stats,
    show_table,
)
from ray_messaging.cli.options import Json
from ray_messaging.cli.session import check_file, output, print_json
from ray_messaging.cli.show import counted
from ray_messaging.cluster.spec import absolute
from ray_messaging.errors import Closed, ConfigError
from ray_messaging.eventlog.plot import check_picture, plot
from ray_messaging.eventlog.reading.causes import DEPTH
from ray_messaging.eventlog.reading.event_rows import rows_of
from ray_messaging.eventlog.reading.paging import json_line, json_lines

DOES_NOT_BALANCE = 1
SHOWN = 50  # the number of rows that a table shows without --limit

Plot = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE", help="Plot traffic and groups to a .png, .pdf or .svg file.")
]
Expand = Annotated[bool, typer.Option("--expand", help="Print a row for each hearer of a broadcast.")]
Lines = Annotated[int, typer.Option("--lines", "-n", min=0, help="Print this many of the last rows first.")]
TailLimit = Annotated[
    int | None,
    typer.Option("--limit", min=0, metavar="N", help="End after N rows; old and new rows both count."),
]
MessageId = Annotated[str, typer.Argument(metavar="ID", help="The message_id of a message.")]
Depth = Annotated[int, typer.Option("--depth", min=1, metavar="N", help="How many levels of causes to print.")]
Steps = Annotated[
    int,
    typer.Option(
        "--depth", min=1, metavar="N", help="How many steps to follow, from the step in which the message is read on."
    ),
]
File = Annotated[Path, typer.Argument(metavar="FILE", help="The new file: .parquet, .csv or .jsonl.")]

app = typer.Typer(
    help="Query an event log: messages, their fates, and the reasons.", no_args_is_help=True, rich_markup_mode=None
)


@app.command(short_help="Show fates, rules, the busiest agents, and traffic.")
@with_fields()
def stats(target: Target, fields: dict[str, Any], as_json: Json = False, plot_file: Plot = None) -> None:
    """Show the fates of messages, what rules did, the busiest agents, and the traffic over time and between groups."""
    if plot_file is not None:
        check_picture(plot_file)
        check_file(plot_file, "draw into another file")
    log = open_log(target)
    found = log.stats(**fields)
    if plot_file is not None:
        try:
            plot(found, plot_file, title=f"Event log of {target}")
        except ImportError as error:
            raise ConfigError(str(error)) from error
    if as_json:
        print_json(json_line(found))
    else:
        console = output()
        show_stats(console, found)
        if plot_file is not None:
            console.print(f"\nThe picture is in {plot_file}.")
    if log.unended:  # `open_log` has printed a warning on stderr that the log has no end
        raise typer.Exit(DOES_NOT_BALANCE)


@app.command(short_help="Write the rows that the log of a killed run lacks.")
def finish(folder: Annotated[str, typer.Argument(metavar="LOG_DIR", help="The log_dir of a run.")]) -> None:
    """Complete the log of a killed run from the data that its embedded server has left."""
    from ray_messaging.cluster.finishing import finish as finish_folder  # noqa: PLC0415 - no other command needs it
    from ray_messaging.eventlog.event_log import EventLog  # noqa: PLC0415

    found = finish_folder(str(absolute(folder)))
    rows = EventLog.open(folder).end + 1
    output().print(f"The log is complete{'' if found else ' already'}: {counted(rows, 'row')}.")


@app.command(short_help="Print the matching rows.")
@with_fields()
def query(target: Target, fields: dict[str, Any], as_json: Json = False, expand: Expand = False) -> None:
    """Print the matching rows in the order of the log: with --json all rows, otherwise the first ones."""
    log = open_log(target)
    if as_json:
        for page in log.pages(**fields, text=True, expand=expand):
            print_json(*json_lines(page))
        return
    fields = {"limit": SHOWN} | fields
    table = log.query(**fields, text=True, expand=expand)
    console = output()
    if len(table):
        show_rows(console, rows_of(table))
    else:
        console.print("No row matches.")
        if fields.keys() - {"limit", "after"}:
            typer.echo(f"note: ray-messaging log stats {target} shows the log's contents", err=True)
    if len(table) and len(table) == fields["limit"]:
        console.print(f"There may be more: --after {table['position'][-1]}, or another --limit.")


@app.command(short_help="Print the answer to a SELECT.")
def sql(
    target: Target,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A SELECT over the table messages.")],
    as_json: Json = False,
) -> None:
    """Print the result of a SELECT over the table messages: with --json all rows, otherwise the first ones."""
    try:
        table = open_log(target).sql(query)
    except ImportError as error:
        # Ray wraps the error in an error of its own, so the cause is shown.
        raise ConfigError(str(getattr(error, "cause", error))) from error
    if as_json:
        print_json(*map(json_line, table.to_pylist()))
        return
    console = output()
    show_table(console, table.slice(0, SHOWN))
    if len(table) > SHOWN:
        console.print(f"These are the first of {counted(len(table), 'row')}: --json prints all.")


def _print_lines(table: Any, *, as_json: bool, otherwise: str) -> None:  # noqa: ANN401 - a pyarrow.Table
    """Print each row as a line of text or JSON. If there are no rows, print `otherwise`."""
    if as_json:
        print_json(*json_lines(table))
        return
    console = output()
    for row in rows_of(table):
        console.print(line_of(row))
    if not len(table):
        console.print(otherwise)


@app.command(short_help="Print the messages between two agents.")
@with_fields("from_id", "to_id", "agent")
def conversation(
    target: Target,
    one: Annotated[str, typer.Argument(metavar="A", help="An agent; '' is the user.")],
    other: Annotated[str, typer.Argument(metavar="B", help="Another agent; '' is the user.")],
    fields: dict[str, Any],
    as_json: Json = False,
) -> None:
    """Print the messages between two agents, in both directions, by time."""
    table = open_log(target).conversation(read_id(one), read_id(other), text=True, **fields)
    _print_lines(table, as_json=as_json, otherwise="These two sent each other no messages.")


@app.command(short_help="Print a question and its answers.")
def thread(
    target: Target,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="The message_id of the question, or of an answer.")],
    as_json: Json = False,
) -> None:
    """Print the thread that a message belongs to: the first question, its answers, their answers, and so on."""
    table = open_log(target).thread(message_id, text=True)
    _print_lines(table, as_json=as_json, otherwise="No message has this id.")


@app.command(short_help="Print why a message was sent: what its sender had read, and why that was sent.")
def why(target: Target, message_id: MessageId, depth: Depth = DEPTH, as_json: Json = False) -> None:
    """Print a message, and below it the messages that its sender had just read, each with its own causes.

    With --json, print one line for each message of the tree, the message before its causes. In the line of a cause,
    `cause_of` is the id of the message above the cause.
    """
    found = open_log(target).why(message_id, depth)
    if as_json:
        print_json(*(json_line(row | {"payload": Raw(row["payload"].encode())}) for row in found.rows()))
    else:
        output().print(str(found))


@app.command(short_help="Print which agents a message could have influenced, step by step.")
def effects(target: Target, message_id: MessageId, depth: Steps = DEPTH, as_json: Json = False) -> None:
    """Print how many agents a message could have influenced, by step. With --json, print a line for each agent."""
    found = open_log(target).effects(message_id, depth)
    if as_json:
        print_json(*map(json_line, found.agents.to_pylist()))
    else:
        output().print(str(found))


@app.command(short_help="Print new rows as they are logged.")
@with_fields("after", "limit")
def tail(
    target: Target, fields: dict[str, Any], lines: Lines = 10, limit: TailLimit = None, as_json: Json = False
) -> None:
    """Print those of the last rows that match, and then new matching rows until Ctrl-C.

    A finished run has no new rows.
    """
    log = open_log(target)
    after = max(-1, log.end - lines)
    if limit is not None:
        # After the loop, `before[0]` is the position after which the last `limit` matching rows come.
        before = deque([after], limit + 1)
        for page in log.pages(**fields, after=after):
            before.extend(page["position"].to_pylist())
        after, fields = before[0], fields | {"limit": limit}
    rows = log.tail(**fields, after=after)
    console = output()
    try:
        for row in rows:
            if as_json:
                print_json(json_line(row))
            else:
                console.print(line_of(row))
    except Closed as error:  # no more rows can come
        typer.echo(f"note: the experiment has ended: {error}", err=True)


@app.command(short_help="Show what ran: settings, groups, rules, starts.")
def run(target: Target, as_json: Json = False) -> None:
    """Show the record of a run: steps, groups, model, command and versions of each start, and changes of rules."""
    found = open_log(target).run
    if as_json:
        print_json(json_line(found or {}))
    elif found is None:
        output().print("This log has no record of its run.")
    else:
        show_run(output(), found)


@app.command(short_help="Write rows to a Parquet, CSV or JSON lines file.")
@with_fields()
def export(target: Target, file: File, fields: dict[str, Any], as_json: Json = False) -> None:
    """Write the matching rows to a Parquet, CSV or JSON lines file.

    Memory use does not grow with the number of rows.
    """
    check_file(file, "choose another file")
    log = open_log(target)
    console = output()
    columns = (TextColumn("{task.completed:>12,} rows"), TimeElapsedColumn())
    bars = Progress(*columns, console=console)
    # The bars are not turned off by disable=, because rich before 14.3 would then print an empty line at the end.
    with bars if console.is_terminal and not as_json else nullcontext():
        task = bars.add_task("rows", total=None)
        rows = log.export(file, on_progress=lambda done: bars.update(task, completed=done), **fields)
    if as_json:
        print_json(json_line({"rows": rows, "file": str(file)}))
    else:
        console.print(f"Wrote {counted(rows, 'row')} to {file}.")


@app.command(short_help="Show the first message in which two runs in steps differ.")
def diff(
    one: Annotated[str, typer.Argument(metavar="A", help="A log_dir, or the exp_id of a running experiment.")],
    other: Annotated[str, typer.Argument(metavar="B", help="Another log_dir or exp_id, to compare with.")],
    as_json: Json = False,
) -> None:
    """Show the first step, agent and message in which two runs in steps differ. The exit code is 1 if they differ."""
    found = open_log(one).diff(open_log(other))
    if as_json:
        print_json(json_line({"differ": found is not None}) if found is None else difference_line(found))
    elif found is None:
        output().print("Both runs sent the same messages.")
    else:
        show_difference(output(), found, one, other)
    if found is not None:
        raise typer.Exit(1)
