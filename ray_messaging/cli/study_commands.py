"""The command `ray-messaging study`, which shows the runs in the folder of a study."""

import math
from pathlib import Path
from typing import Annotated

import typer
from msgspec.json import encode

from ray_messaging.cli.options import Json
from ray_messaging.cli.session import output, print_json
from ray_messaging.cli.show import counted, plain_table, print_table
from ray_messaging.common.texts import printable

_ERRORS = 5  # at most this many errors are shown

app = typer.Typer(help="Show a study of batch_run.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def study() -> None:
    """Show a study of batch_run."""


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a study, finished or not.")],
    level: Annotated[float, typer.Option(help="The confidence level of the intervals.")] = 0.95,
    as_json: Json = False,
) -> None:
    """Show, for each row of parameters, the mean of each outcome with its interval; and the runs that failed."""
    from ray_messaging.studies.study import Study  # noqa: PLC0415 - it takes a second

    found = Study(folder)
    rows = found._summary(level)
    if as_json:
        print_json(*(encode(row) for row in rows))
        return
    console = output()
    console.print(repr(found), markup=False)
    if not rows:
        return
    outcomes = [name for name in rows[0] if f"{name} low" in rows[0]]
    right = ["runs", "failed", *outcomes]
    table = plain_table("", *found.parameters, *right, right=right)
    for row in rows:
        means = [_with_interval(row[name], row[f"{name} low"], row[f"{name} high"]) for name in outcomes]
        cells = [printable(str(row[name])) for name in found.parameters]
        table.add_row(*cells, f"{row['runs']:,}", f"{row['failed']:,}", *means)
    print_table(console, table)
    failed = [run for run in found._runs if run.error is not None]
    for run in failed[:_ERRORS]:
        console.print(f"{run.row}, replicate {run.replicate}: {printable(run.error or '')}", markup=False)
    if len(failed) > _ERRORS:
        console.print(f"... and {counted(len(failed) - _ERRORS, 'more run')} failed")


def _with_interval(mean: float, low: float, high: float) -> str:
    return f"{mean:.4g}" if math.isnan(low) else f"{mean:.4g} ({low:.4g} to {high:.4g})"
