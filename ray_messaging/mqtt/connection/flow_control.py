"""Whether what comes over a connection is read, or left in its socket."""

import asyncio
import contextlib
import select
from collections.abc import Callable, Iterator

_HUNG_UP = getattr(select, "POLLRDHUP", 0)  # Linux has it; POLLHUP and POLLERR are always told


class FlowControl:
    """Have `read` called when something comes, unless we are paused; an answer that is awaited comes all the same."""

    def __init__(self, read: Callable[[], None]) -> None:
        self.open = False
        self._loop = asyncio.get_running_loop()
        self._read = read
        self._fileno = -1
        self._paused = False
        self._awaited = 0

    def begin(self, fileno: int) -> None:
        """Take a socket that has just been opened."""
        self._fileno = fileno
        self._turn()

    def end(self) -> None:
        """Let go of the socket; it is not closed yet."""
        if self.open:
            self._loop.remove_reader(self._fileno)
        self.open, self._fileno = False, -1

    def pause(self) -> None:
        """Stop reading; what was read already may still be handed out."""
        self._paused = True
        self._turn()

    def resume(self) -> None:
        """Read on."""
        self._paused = False
        self._turn()

    @contextlib.contextmanager
    def awaiting(self) -> Iterator[None]:
        """Read, paused or not: what we asked for comes behind all that the broker has sent before."""
        self._awaited += 1
        self._turn()
        try:
            yield
        finally:
            self._awaited -= 1
            self._turn()

    def _turn(self) -> None:
        wanted = self._fileno >= 0 and (self._awaited > 0 or not self._paused)
        if wanted == self.open:
            return
        self.open = wanted
        if wanted:
            self._loop.add_reader(self._fileno, self._read)
            self._loop.call_soon(self._read)  # for what was read ahead
        else:
            self._loop.remove_reader(self._fileno)

    def hung_up(self) -> bool:
        """Tell whether the other side has hung up, which nobody sees who does not read."""
        poll = select.poll()
        poll.register(self._fileno, _HUNG_UP)
        return bool(poll.poll(0))
