"""The command line: a demo, and the replay of real traces."""

from ray_messaging.cli.app import app

__all__ = ["app"]
