"""Questions that handles ask through a group's actor."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from ray_messaging.conversations.answers import Answers
from ray_messaging.conversations.handling import Asker
from ray_messaging.errors import NoAnswer, UnknownName
from ray_messaging.message import Message
from ray_messaging.messager import Messager
from ray_messaging.receipt import Receipts
from ray_messaging.wire.frames import decode, encode

_MOST_KEPT = 16  # calls that have ended and were read, for one that Ray repeats
_MOST_UNREAD = 1024  # calls that have ended: a handle may be gone, and read nothing


class MoreAnswers(NamedTuple):
    """Answers for a handle: the places of each part's questions, and its frame; by place, why others have none."""

    parts: list[tuple[bytes, bytes]]
    late: int
    errors: list[tuple[int, NoAnswer]]


class GroupQuestions:
    """The questions of a group's handles: each call has an id, and happens once where Ray repeats it."""

    def __init__(self, messager: Messager) -> None:
        self._messager = messager
        self._lone: dict[str, asyncio.Task[Message]] = {}
        self._asked: dict[str, asyncio.Task[Answers]] = {}
        self._read: set[str] = set()  # of these, those whose handle has all answers

    async def ask(self, call: str, frame: bytes, timeout: float | None, asker: Asker | None = None) -> Message:
        """Ask one question, of a handler; return its answer."""
        if call not in self._lone:
            batch = decode(frame)
            asking = self._messager.conversation.ask_batch(batch, timeout, asker)
            self._lone[call] = asyncio.create_task(asking, name="ray_messaging question")
            self._lone[call].add_done_callback(lambda _: self._forget_lone())
        return await asyncio.shield(self._lone[call])

    async def ask_many(self, call: str, frames: Sequence[bytes], timeout: float | None) -> Receipts:
        """Ask many questions; return their receipts."""
        if call not in self._asked:
            asking = self._messager.conversation.ask_batches([decode(frame) for frame in frames], timeout)
            self._asked[call] = asyncio.create_task(asking, name="ray_messaging questions")
            self._forget_asked()
        answers = await asyncio.shield(self._asked[call])
        assert answers.receipts is not None
        return answers.receipts

    async def more(self, call: str, parts: int, wait_s: float, errors: int = 0) -> MoreAnswers:
        """Return the answers behind some parts and errors; wait for the first. Raises UnknownName."""
        if call not in self._asked:
            raise UnknownName(
                "the group's actor does not know these questions any more: it was started anew, and their answers come "
                f"as ordinary messages; or {_MOST_UNREAD:,} later calls have ended, and nobody had read these answers",
                kind="questions",
                value=call,
            )
        answers = await self._asked[call]
        if (len(answers.parts), len(answers.errors)) == (parts, errors) and not answers.done:
            try:
                async with asyncio.timeout(wait_s):
                    await answers.change()
            except TimeoutError:
                pass
        found = [(part.places.astype("<i8").tobytes(), encode(part.batch)) for part in answers.parts[parts:]]
        if answers.done:
            self._read.add(call)
        return MoreAnswers(found, answers.late, [*answers.errors.items()][errors:])

    def _forget_lone(self) -> None:
        for call in [call for call, task in self._lone.items() if task.done()][:-_MOST_KEPT]:
            del self._lone[call]

    def _forget_asked(self) -> None:
        """Forget the oldest questions that wait for no more answers, soon after their answers were read."""
        over = [call for call, task in self._asked.items() if _over(task)]
        read = [call for call in over if call in self._read]
        for call in {*read[:-_MOST_KEPT], *over[:-_MOST_UNREAD]}:
            del self._asked[call]
            self._read.discard(call)


def _over(task: "asyncio.Task[Answers]") -> bool:
    """Tell whether questions were not sent, or wait for no more answers."""
    return task.done() and (task.cancelled() or task.exception() is not None or task.result().done)
