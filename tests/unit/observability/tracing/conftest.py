"""Fixtures of tests of tracing."""

from support.spans import spans

__all__ = ["spans"]
