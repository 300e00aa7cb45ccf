"""Entry point of `python -m ray_messaging.cli`."""

from ray_messaging.cli.app import app

app(prog_name="ray-messaging")
