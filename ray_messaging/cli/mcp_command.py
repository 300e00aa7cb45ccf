"""The command `ray-messaging mcp`."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from ray_messaging.cli.rule_specs import KNOWN, parse_rule
from ray_messaging.cli.session import join_experiment
from ray_messaging.errors import ConfigError
from ray_messaging.inspector.sources.live_control import LiveControl
from ray_messaging.inspector.sources.run_folders import RunFolders

Folders = Annotated[
    list[str], typer.Argument(metavar="FOLDER...", help="Folders of runs (log_dir), or folders that hold some.")
]
Control = Annotated[bool, typer.Option("--control", help="Let the assistant pause runs, insert rules, and make forks.")]
Model = Annotated[
    str | None,
    typer.Option("--model", metavar="MODULE:FUNCTION", help="With --control: the model of forks, such as town:person."),
]


def mcp(folders: Folders, control: Control = False, model: Model = None) -> None:
    """Answer an assistant's questions about runs: a server of the Model Context Protocol on stdin and stdout.

    An assistant starts this command itself, from its configuration: see docs/guides/mcp.md. Without --control, it can
    only read the runs in the folders.
    """
    check_extra()
    if model is not None and not control:
        raise ConfigError("--model is used only for forks: pass --control, too, or leave out --model")
    from ray_messaging.inspector.mcp_server import RunAnswers, RunControl, mcp_server  # noqa: PLC0415 - needs the extra `mcp`

    runs = RunFolders(folders)
    steering = RunControl(runs, join, model) if control else None
    mcp_server(RunAnswers(runs), steering).run("stdio")


def check_extra() -> None:
    """Raise ConfigError unless version 2 of the package mcp is installed."""
    try:
        found = find_spec("mcp.server.mcpserver")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ConfigError("the server for assistants needs version 2 of mcp: pip install 'ray-messaging[mcp]'")


def join(exp_id: str, folder: str) -> LiveControl:
    """Return an object that controls a running experiment.

    Raises: ConfigError if the experiment does not run, or does not log into `folder`.
    """
    messaging = join_experiment(exp_id, "ask about the run without steering it")
    if messaging.log_dir is None or Path(messaging.log_dir).resolve() != Path(folder).resolve():
        raise ConfigError(
            f"the running experiment {exp_id!r} has log_dir={messaging.log_dir!r}, not {folder!r}: ask about the run "
            f"in {folder!r} without steering it"
        )
    return LiveControl(messaging, parse_rule, [known.example for known in KNOWN.values()])
