"""An event loop for tests of what happens in the course of time, in which no time passes outside."""

import asyncio
from selectors import DefaultSelector


class InstantSelector(DefaultSelector):
    """A selector that takes no time: where it would wait, its clock goes on."""

    now = 0.0

    def select(self, timeout=None):
        """Return what is ready, and let the time pass that the caller would wait."""
        self.now += timeout or 0.0
        return super().select(timeout if timeout is None else 0)


class InstantLoop(asyncio.SelectorEventLoop):
    """An event loop whose sleeps take no time, so that other work on the machine changes no time in it."""

    def __init__(self):
        self._clock = InstantSelector()
        super().__init__(self._clock)

    def time(self):
        """Return the seconds that have passed in this loop."""
        return self._clock.now


def run(coroutine):
    """Run a coroutine in an InstantLoop, and return its result."""
    with asyncio.Runner(loop_factory=InstantLoop) as runner:
        return runner.run(coroutine)
