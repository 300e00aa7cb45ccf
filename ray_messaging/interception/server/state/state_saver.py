"""Answers saved together with the counts they changed."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping

from ray_messaging.interception.server.state.answers import Answers
from ray_messaging.interception.server.state.state_writer import StateWriter


class StateSaver:
    """Answers and the counts that rest on them, kept here and, with a `writer`, on the server.

    `unsafe` holds answers that are counted and not yet saved, each with its packed record. A sender that asks again
    gets the same answer, once it is saved.
    """

    def __init__(
        self,
        writer: StateWriter | None,
        keep_s: float,
        is_open: Callable[[str], bool],
        in_step: Callable[[str], bool],
    ) -> None:
        self.writer = writer
        self.answers = Answers(keep_s, is_open, in_step)
        self.unsafe: dict[str, tuple[bytes, bytes]] = {}
        if writer is not None:
            writer.all_answers = self._all_answers

    def _all_answers(self) -> dict[str, bytes]:
        return self.answers.counted() | {key: data for key, (_, data) in self.unsafe.items()}

    def save(self) -> Awaitable[None]:
        """Save all counts as they are now; done once they are on the server."""
        return _done() if self.writer is None else self.writer.keep({})

    def keep(self, key: str, answer: bytes, data: bytes) -> Awaitable[None]:
        """Save an answer's packed record with all counts as they are now; done once both are on the server.

        The record is attached at once, before the first await: a count must never be on the server without it.
        """
        assert self.writer is not None
        self.unsafe[key] = (answer, data)
        return self._kept(key, data, self.writer.keep({key: data}))

    async def _kept(self, key: str, data: bytes, saved: Awaitable[None]) -> None:
        await saved
        self.unsafe.pop(key, None)
        self._remember({key: data})

    def attach(self, records: Mapping[str, bytes]) -> None:
        """Add records of counted or deferred messages to the next write."""
        if self.writer is not None:
            self.writer.attach(records)
            self._remember(records)

    def hold(self, key: str, data: bytes) -> None:
        """Keep an answer's packed record here only, as it rests on no counts."""
        self._remember({key: data})

    def _remember(self, records: Mapping[str, bytes]) -> None:
        for key, data in records.items():
            expired = self.answers.count(key, data)
            if expired and self.writer is not None:
                self.writer.forget(expired)

    def forget(self, keys: Collection[str]) -> None:
        """Drop answers that nobody may ask for any more; the next write drops them on the server."""
        self.answers.drop(keys)
        for key in keys:
            self.unsafe.pop(key, None)
        if keys and self.writer is not None:
            self.writer.forget([*keys])

    @property
    def changed(self) -> bool:
        """Return whether there are counts that no write includes yet."""
        return self.writer is not None and self.writer.changed

    @property
    def behind(self) -> bool:
        """Return whether the server lacks some of the counts."""
        return self.writer is not None and self.writer.behind

    async def close(self) -> None:
        """Wait a moment for the current write; nothing is written after this."""
        if self.writer is not None:
            await self.writer.close()


def _done() -> Awaitable[None]:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done
