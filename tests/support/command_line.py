"""The command `ray-messaging` in this process."""

from typer.testing import CliRunner

from ray_messaging.cli.app import app


def command(*args):
    """Run `ray-messaging` with arguments; return its output. Fails where it fails."""
    told = CliRunner().invoke(app, [*map(str, args)])
    assert told.exit_code == 0, told.output
    return told.stdout


def ended(*args):
    """Run `ray-messaging` with arguments; return its exit status and its output."""
    told = CliRunner().invoke(app, [*map(str, args)])
    return told.exit_code, told.output
