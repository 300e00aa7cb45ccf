"""Measure ray_messaging beside its peers and the machine's limits."""

import signal
from pathlib import Path
from subprocess import SubprocessError
from typing import Annotated

import typer

from benchmarks.figures import Plan
from benchmarks.reports import markdown as drawing
from benchmarks.runs.results import FILE, Run
from benchmarks.runs.runner import Part

app = typer.Typer(
    name="python -m benchmarks",
    help=__doc__,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
OUT = Path("benchmark-results")
ENVS = Path("~/.cache/ray_messaging/benchmarks")
NO_PLOTS = "no plots: matplotlib is not installed here (pip install --group benchmarks)"

Out = Annotated[Path, typer.Option("--out", help="Folder for benchmarks.json, benchmarks.md and the plots.")]
Envs = Annotated[Path, typer.Option("--envs", help="Folder with the peers' environments.")]


@app.command(short_help="Measure: peers, axes and limits, one after the other.")
def run(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points, shorter: minutes rather than twenty.")] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Parts whose name holds this text; repeatable.")
    ] = None,
    out: Out = OUT,
    envs: Envs = ENVS,
    seconds: Annotated[float | None, typer.Option(min=0.1, help="Measure each rate for so long.")] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help="Measure each rate so often.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON rather than tables.")] = False,
    list_parts: Annotated[bool, typer.Option("--list", help="Name the parts, and measure nothing.")] = False,
) -> None:
    """Measure ray_messaging, its peers and the machine's limits; write JSON, Markdown and plots.

    Each part runs in a process of its own, one after the other. A part that fails is reported and does not end the
    others; the exit code is 1 then. Missing environments of peers are built first.
    """
    from benchmarks.runs import parts

    usual = Plan.of(quick)
    plan = Plan(quick, seconds or usual.seconds, repeats or usual.repeats)
    envs = envs.expanduser()
    chosen = parts.choose(plan, only or [], envs)
    if list_parts:
        typer.echo("\n".join(part.name for part in chosen))
        return
    if not chosen:
        names = ", ".join(part.name for part in parts.choose(plan, [], envs))
        raise typer.BadParameter(f"no part's name holds {' or '.join(only or [])}; there are {names}")
    found = _measure(plan, chosen, parts.environments(plan, only or [], envs), envs, out)
    _write(found, out)
    _show(found, as_json=as_json)
    raise typer.Exit(1 if found.failed else 0)


@app.command(short_help="Build the environments in which the peers run.")
def peers(envs: Envs = ENVS) -> None:
    """Build the environments in which the peers run, each with its pinned versions; keep those that are there."""
    from benchmarks.peers import PEERS

    names = list(dict.fromkeys(peer.environment for peer in PEERS if peer.environment))
    failed = _build(names, envs.expanduser())
    typer.echo(f"environments in {envs.expanduser()}: {', '.join(names)}")
    raise typer.Exit(1 if failed else 0)


@app.command(short_help="Draw the tables and plots of a run anew.")
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a run, with its benchmarks.json.")] = OUT,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON rather than tables.")] = False,
) -> None:
    """Draw Markdown and plots from a run's JSON, and show its tables."""
    try:
        found = Run.from_json((folder / FILE).read_text())
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise typer.BadParameter(f"cannot read {folder / FILE}: {error}") from error
    _write(found, folder)
    _show(found, as_json=as_json)


def _build(names: list[str], envs: Path) -> bool:
    """Build environments one by one; tell whether one failed, which its peers' rows will say again."""
    failed = False
    for name in names:
        from benchmarks.setup import environments

        try:
            environments.build(envs, [name], lambda words: typer.echo(words, err=True))
        except (RuntimeError, OSError, SubprocessError) as error:
            failed = True
            typer.echo(f"environment {name} is not built: {error}", err=True)
    return failed


def _measure(plan: Plan, chosen: list[Part], needed: list[str], envs: Path, out: Path) -> Run:
    """Run the parts. The JSON is written after each, so that an interrupted run keeps its figures."""
    from benchmarks.machine import facts
    from benchmarks.reports.screen import Showing
    from benchmarks.runs.runner import run_all

    _build(needed, envs)
    found = Run(facts(), plan)
    if warning := drawing.busy_warning(found):
        typer.secho(warning, fg="yellow", err=True)
    # SIGTERM ends the current part, and the figures so far are kept.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with Showing(len(chosen)) as showing:
            for outcome in run_all(chosen, showing):
                found.outcomes.append(outcome)
                found.write(out)
    finally:
        signal.signal(signal.SIGTERM, before)
    return found


def _write(found: Run, folder: Path) -> None:
    """Write all that is drawn of a run."""
    found.write(folder)
    plots: list[Path] = []
    try:
        from benchmarks.plots import draw

        plots = draw(found, folder)
    except ImportError as error:
        if error.name != "matplotlib":
            raise
        typer.secho(NO_PLOTS, fg="yellow", err=True)
    (folder / drawing.FILE).write_text(drawing.markdown(found, plots))
    typer.echo(
        f"written: {', '.join(str(folder / name) for name in (FILE, drawing.FILE))}, {len(plots)} plots", err=True
    )


def _show(found: Run, *, as_json: bool) -> None:
    from benchmarks.reports.screen import show

    if as_json:
        typer.echo(found.to_json())
    else:
        show(found)


if __name__ == "__main__":
    app()
