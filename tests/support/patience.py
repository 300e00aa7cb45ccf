"""The patience of tests."""

import threading
import time

WAIT_S = 60.0  # a busy machine may take half of it for what takes a second here
AT_ONCE_S = 20.0  # for what must not wait until a timeout of the product, 30 s and more, has passed


def wait_for(condition, what="it", timeout=WAIT_S):
    """Return the first true value of a condition; fail after the deadline."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} did not happen within {timeout:g} s"
        time.sleep(0.02)
    return found


class Busy(threading.Thread):
    """A thread that works until it is stopped; `stop` raises its error."""

    def __init__(self):
        super().__init__()
        self.errors, self.enough = [], threading.Event()

    def run(self):
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - `stop` raises it
            self.errors.append(error)

    def stop(self):
        self.enough.set()
        self.join(WAIT_S)
        assert not self.is_alive(), f"{self.name} still works"
        if self.errors:
            raise self.errors[0]
        return self
