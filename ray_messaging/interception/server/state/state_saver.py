"""Nobody gets an answer before what it has counted is safe."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from ray_messaging.interception.server.deferred.answers import Answers
from ray_messaging.interception.server.state.store import Saver


class StateSaver:
    """Keep answers with what they have counted: here, and on the server where there is one (`saver`).

    `unsafe` are answers (and as they are packed) that have counted, and are not safe yet: who asks again gets the same
    one, once it is.
    """

    def __init__(self, saver: Saver | None, keep_s: float, is_open: Callable[[str], bool]) -> None:
        self.saver = saver
        self.answers = Answers(keep_s, is_open)
        self.unsafe: dict[str, tuple[bytes, bytes]] = {}
        if saver is not None:
            saver.recall = self._recall

    def _recall(self) -> dict[str, bytes]:
        """Return all answers that count, as the server has them."""
        return self.answers.counted() | {key: data for key, (_, data) in self.unsafe.items()}

    def save(self) -> Awaitable[None]:
        """Have all written that is counted by now; done once it is on the server."""
        return _nothing() if self.saver is None else self.saver.keep({})

    def keep(self, key: str, answer: bytes, data: bytes) -> Awaitable[None]:
        """Write an answer, as `record` packs it, with all that is counted by now; done once both are on the server.

        It goes at this very step: what it has counted must not be there without it.
        """
        assert self.saver is not None
        self.unsafe[key] = (answer, data)
        return self._kept(key, data, self.saver.keep({key: data}))

    async def _kept(self, key: str, data: bytes, saved: Awaitable[None]) -> None:
        await saved
        self.unsafe.pop(key, None)
        self._remember({key: data})

    def attach(self, records: Mapping[str, bytes]) -> None:
        """Have answers of messages that count, or wait, go with the next write."""
        if self.saver is not None:
            self.saver.attach(records)
            self._remember(records)

    def _remember(self, records: Mapping[str, bytes]) -> None:
        assert self.saver is not None
        for key, data in records.items():
            over = self.answers.count(key, data)
            if over:
                self.saver.forget(over)

    @property
    def changed(self) -> bool:
        """Tell whether something was counted that no write has taken along yet."""
        return self.saver is not None and self.saver.changed

    @property
    def behind(self) -> bool:
        """Tell whether the server does not have all that is counted."""
        return self.saver is not None and self.saver.behind

    async def close(self) -> None:
        """Wait a moment for what is being written; nothing is written after this."""
        if self.saver is not None:
            await self.saver.close()


def _nothing() -> Awaitable[None]:
    """Be done."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done
