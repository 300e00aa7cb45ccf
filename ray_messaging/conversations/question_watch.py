"""A watch over the open questions of one messager. It ends questions that can no longer get an answer."""

import asyncio
import logging
import time
from collections.abc import Mapping

from ray_messaging.common.task_health import end
from ray_messaging.conversations.open_questions import OpenQuestion, OpenQuestions
from ray_messaging.engine import Engine
from ray_messaging.errors import MessagingError
from ray_messaging.wire.notes import ended_of

logger = logging.getLogger(__name__)

_LOOK_S = 0.5  # between two looks: only what both have seen counts, as notes are written with some delay
_SHARE = 20  # the pause is at least so many times as long as the last look took


class QuestionWatch:
    """A watch over the open questions of one messager, which asks the server from time to time what has become of them.

    It ends a question if no mailbox hosts the agent any more, or if the service of its mailbox has ended. Two looks in
    a row must have seen the same reason.
    """

    def __init__(self, engine: Engine, questions: OpenQuestions) -> None:
        self._engine = engine
        self._questions = questions
        self._task: asyncio.Task[None] | None = None
        self._seen: dict[object, str] = {}  # a question -> why it cannot get an answer, as the last look has seen it

    def begin(self) -> None:
        """Start to watch, for as long as there are open questions."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="ray_messaging question watch")

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None:
            await end(self._task)

    async def _run(self) -> None:
        pause_s = _LOOK_S
        while True:
            await asyncio.sleep(pause_s)
            began = time.monotonic()
            if not self._questions.waiting:
                self._seen = {}
                return
            try:
                await self._look()
            except MessagingError as error:  # a server that is away says nothing about them
                logger.debug("open questions are not looked at: %s", error)
            pause_s = max(_LOOK_S, _SHARE * (time.monotonic() - began))

    async def _look(self) -> None:
        engine = self._engine
        assert engine.frame_sender is not None
        await engine.frame_sender.refresh()
        asked = [*self._questions.open(engine.directory)]
        notes = await engine.transport.services({name for each in asked for name in each.mailboxes})
        found = {each.key: why for each in asked if (why := _hopeless(each, notes))}
        for each in asked:
            if each.key in found and self._seen.get(each.key) == found[each.key]:
                each.fail(found[each.key])
        self._seen = found


_GONE = (
    "no group has it any more: its group was removed, or it has left it. What waited for it is among the dead letters"
)
_ENDED = (
    "nobody serves {!r}: its service has ended ({}). The question waits there for the next one that serves or fetches"
)


def _hopeless(asked: OpenQuestion, notes: Mapping[str, bytes]) -> str:
    """Return why no mailbox will answer a question, or "" if one may."""
    if not asked.mailboxes:
        return _GONE
    ended = [(name, why) for name in asked.mailboxes if (why := ended_of(notes.get(name, b"")))]
    return _ENDED.format(*ended[0]) if len(ended) == len(asked.mailboxes) else ""
