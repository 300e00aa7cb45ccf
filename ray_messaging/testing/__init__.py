"""Helpers for tests of your models."""

from ray_messaging.cluster.run.local_run import run
from ray_messaging.testing.repeatability import check_repeatable

__all__ = ["check_repeatable", "run"]
