"""The command `ray-messaging report`: a page about one run, or about two."""

from ray_messaging.cli.report.command import report

__all__ = ["report"]
