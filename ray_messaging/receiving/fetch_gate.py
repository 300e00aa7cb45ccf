"""Whose turn it is in a mailbox: whoever fetches, or one transaction, which may put everything back."""

import asyncio
from collections.abc import Awaitable, Callable

from ray_messaging.errors import TransactionError
from ray_messaging.receiving.commits import Commits
from ray_messaging.receiving.in_flight import InFlight
from ray_messaging.receiving.inbox import Inbox
from ray_messaging.transports.base import Conclusion

_OPEN = (
    "a transaction of this messager is open: fetch by `tx.fetch_messages()` in its block, and leave the block before "
    "anything else fetches, commits, or opens another one"
)


class FetchGate:
    """Let one transaction at a time have the messages, and remember the state that the last one left.

    Where it is not known what became of the last one, whoever comes next asks before anything else.
    """

    def __init__(self, inbox: Inbox) -> None:
        self.state: bytes | None = None
        self._inbox = inbox
        self._commits: Commits | None = None  # while one is open
        self._before: InFlight | None = None  # what was in flight when it was opened
        self._doubtful: Callable[[], Awaitable[None]] | None = None
        self._asking = asyncio.Lock()

    @property
    def is_free(self) -> bool:
        """Tell whether whoever fetches need not wait for a transaction, nor is refused for one."""
        return self._commits is None and self._doubtful is None

    async def free(self) -> None:
        """Wait until it is known what became of the last transaction; raise TransactionError while one is open."""
        self._check()
        if self._doubtful is not None:
            async with self._asking:
                if self._doubtful is not None:
                    await self._doubtful()
            self._check()

    def _check(self) -> None:
        if self._commits is not None:
            raise TransactionError(_OPEN)

    async def open(self, commits: Commits) -> None:
        """Begin, and commit what was fetched before; what is taken from now on can be put back."""
        self._commits = commits
        self._inbox.keep()
        commits.acknowledge()
        self._before = commits.in_flight.copy()
        try:
            await commits.write()
        except BaseException:
            self.put_back()
            raise

    def conclude(self, state: bytes | None, *, sends: bool) -> Conclusion | None:
        """Return what the transaction changes at its end, beside what it sends; None: nothing."""
        assert self._commits is not None
        assert self._before is not None
        flight, changed = self._commits.in_flight, state != self.state
        fetched = flight.at != self._before.at
        flight.ack(self._before.taken, flight.taken)
        if not fetched and not changed and not sends:
            return None
        return self._commits.conclusion(state, fetched=fetched, changed=changed)

    def put_back(self) -> None:
        """End the transaction: what it took comes again."""
        self._inbox.put_back()
        if self._commits is not None and self._before is not None:
            self._commits.in_flight = self._before
        self._commits = None

    def let_go(self, conclusion: Conclusion | None) -> None:
        """End the transaction: the server has it."""
        self._inbox.let_go()
        if conclusion is not None and self._commits is not None:
            self._commits.concluded(conclusion)
            self.state = conclusion.state
        self._commits = None

    def doubt(self, conclusion: Conclusion, ask: Callable[[], Awaitable[bool]]) -> None:
        """End the transaction without knowing whether the server has it; `ask` finds out."""
        commits, self._commits = self._commits, None

        async def find_out() -> None:
            committed = await ask()
            self._commits, self._doubtful = commits, None
            if committed:
                self.let_go(conclusion)
            else:
                self.put_back()

        self._doubtful = find_out
