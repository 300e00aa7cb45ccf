"""The list of commands. This is the only place in which commands are registered.

To add a command, write its function in a file of this folder, and add a line to `COMMANDS`. The docstring of the
function is the command's help. A family of commands, such as `log stats`, is a `typer.Typer` in a file of its own.

The file of a command is imported when the command is used, because most of these files import Ray, which takes a
second. So `--help`, completion and a mistyped command answer at once.
"""

import errno
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from ray_messaging.errors import MessagingError

USAGE, INTERRUPTED = 2, 130

# For each command: "module:name" of its function, and its description in the list of commands. For a family of
# commands, "module:name" is that of the family's typer app.
COMMANDS = {
    "demo": ("replay:demo", "Run a society of agents, filtered by a black list."),
    "replay": ("replay:replay", "Send a real trace through groups, and check each message."),
    "doctor": ("doctor:doctor", "Check the health of an experiment, a server, or this machine."),
    "surveys": ("survey_commands:surveys", "List the surveys of an experiment."),
    "report": ("report:report", "Write an HTML page about a run, or about two."),
    "ui": ("ui:ui", "Show a run in the browser."),
    "mcp": ("mcp_command:mcp", "Answer an assistant's questions about runs, by MCP."),
    "fork": ("fork_command:fork", "Go on with a run from a checkpoint, as another run."),
    "log": ("log:app", "Query an event log: messages, their fates, and the reasons."),
    "study": ("study_commands:app", "Show a study of batch_run."),
    "deadletters": ("dead_letter_commands:app", "Inspect dead letters, send them again, or delete them."),
    "metrics": ("metrics:app", "Show metrics, or write a dashboard for Grafana."),
}

BEGIN = """\
ray-messaging carries messages between the agents of a simulation on a Ray cluster.

Begin with one of these:

  ray-messaging doctor       check that this machine has what is needed
  ray-messaging demo         run 1,000 agents that send a million messages (half a minute)
  ray-messaging --help       list all commands

Or save this program as moods.py, and start it by: python moods.py

"""
PROGRAM = """\
from ray_messaging import Messaging, Steps


def person(me, inbox):
    me.state["mood"] = sum(m.payload["mood"] for m in inbox) / 10 + me.rng.normal()
    me.send((me.id + 1) % 1000, {"mood": me.state["mood"]})


with Messaging.start("moods", steps=Steps(seed=7)) as messaging:
    print(messaging.run(person, agents=1000, groups=4, until=20).states[7])
"""


class LateCommand(TyperCommand):
    """A command in the list of commands, whose file has not been imported yet."""

    def __init__(self, name: str, place: str, short_help: str) -> None:
        super().__init__(name=name, short_help=short_help, rich_markup_mode=None)
        self._place = place

    def load(self) -> Any:  # noqa: ANN401 - click's command, or that of typer's own click
        """Import the command's file, and return the command itself."""
        module, _, name = self._place.partition(":")
        found = getattr(import_module(f"ray_messaging.cli.{module}"), name)
        if isinstance(found, typer.Typer):
            return get_group(found)
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(self.name)(found)
        return get_command(alone)


class _Commands(TyperGroup):
    """Commands that print an expected error as one line on stderr, with exit code 2.

    After Ctrl-C the exit code is 130.
    """

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - typer's
        super().__init__(**settings)
        for name, (place, short_help) in COMMANDS.items():
            self.add_command(LateCommand(name, place, short_help))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 - click's context and command
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, LateCommand) else command, rest

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
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - as slow as all other imports here together

        typer.echo(f"ray-messaging {version('ray-messaging')}")
        raise typer.Exit


@app.callback()
def main(
    context: typer.Context,
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Run a demo on Ray, replay a real trace, query an event log, check a system's health, handle dead letters."""
    if context.invoked_subcommand is None:
        typer.echo(BEGIN + "".join(f"    {line}".rstrip() + "\n" for line in PROGRAM.splitlines()))
