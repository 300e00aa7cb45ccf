"""The command line `ray-messaging`."""

from ray_messaging.cli.app import app

__all__ = ["app"]
