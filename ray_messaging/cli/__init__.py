"""The command line."""

from ray_messaging.cli.app import app

__all__ = ["app"]
