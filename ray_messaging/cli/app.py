"""The list of commands. This is the only place in which commands are registered.

To add a command, write its function in a file of this folder, and register it here; its docstring is its help. For a
family of commands, such as `log stats`, add an `app` here, and register its commands in the family's file.
"""

import errno
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ray_messaging.cli.dead_letter_commands import app as dead_letters_app
from ray_messaging.cli.doctor import doctor
from ray_messaging.cli.fork_command import fork
from ray_messaging.cli.log import app as log_app
from ray_messaging.cli.mcp_command import mcp
from ray_messaging.cli.metrics import app as metrics_app
from ray_messaging.cli.replay import demo, replay
from ray_messaging.cli.report import report
from ray_messaging.cli.study_commands import app as study_app
from ray_messaging.cli.survey_commands import surveys
from ray_messaging.cli.ui import ui
from ray_messaging.errors import MessagingError

USAGE, INTERRUPTED = 2, 130


class _Commands(TyperGroup):
    """Commands whose errors, of this library or the system, are one line on stderr, and exit code 2; Ctrl-C: 130."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - click's context, or that of typer's own click
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("stopped", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except (MessagingError, OSError) as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                raise  # the reader of the output has closed the pipe
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(USAGE) from error


app = typer.Typer(
    cls=_Commands,
    name="ray-messaging",
    help="Durable, filtered, logged messaging between millions of agents on a Ray cluster.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command(short_help="Run a society of agents, filtered by a black list.")(demo)
app.command(short_help="Send a real trace through groups, and check each message.")(replay)
app.command(short_help="Check the health of an experiment, a server, or this machine.")(doctor)
app.command(short_help="List the surveys of an experiment.")(surveys)
app.command(short_help="Write an HTML page about a run, or about two.")(report)
app.command(short_help="Show a run in the browser.")(ui)
app.command(short_help="Answer an assistant's questions about runs, by MCP.")(mcp)
app.command(short_help="Go on with a run from a checkpoint, as another run.")(fork)
app.add_typer(log_app, name="log")
app.add_typer(study_app, name="study")
app.add_typer(dead_letters_app, name="deadletters")
app.add_typer(metrics_app, name="metrics")


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it
    if wanted:
        typer.echo(f"ray-messaging {version('ray-messaging')}")
        raise typer.Exit


@app.callback()
def main(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Run a demo on Ray, replay a real trace, query an event log, check a system's health, handle dead letters."""
