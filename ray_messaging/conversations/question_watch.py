"""A watch over the open questions of one messager. It ends the wait of questions that can no longer get an answer."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import NamedTuple

from ray_messaging.common.task_health import end
from ray_messaging.conversations.open_questions import OpenQuestion, OpenQuestions
from ray_messaging.errors import MessagingError
from ray_messaging.messager_engine import Engine
from ray_messaging.wire.notes import Ask, ServiceNote, decode_service_note

logger = logging.getLogger(__name__)

# Seconds between two checks of the open questions. A question is given up only if two checks find the same reason,
# because mailboxes write their notes (see WaitGraph) to the server with a delay.
_LOOK_S = 0.5
_SHARE = 20  # the pause is at least this many times as long as the last check
_MOST_NOTES = 1000  # after the notes of this many mailboxes, one check reads no more notes


class WaitGraph(NamedTuple):
    """A graph of open questions, each of which may have to wait for the answers to other questions.

    The graph is made from notes on the server. When all handlers of a mailbox wait for answers to their own questions,
    the mailbox's note lists these questions. `asks` has the questions of all notes by id, and `notes` has the note of
    each mailbox.
    """

    asks: dict[str, Ask]
    # By the id of a message that a handler is handling: the questions for whose answers the handler waits.
    in_hand: dict[str, tuple[Ask, ...]]
    notes: Mapping[str, ServiceNote]

    @classmethod
    def of(cls, notes: Mapping[str, ServiceNote]) -> "WaitGraph":
        """Build the graph. `notes` has the note of each mailbox."""
        slots = [slot for note in notes.values() for slot in note.slots]
        asks = {ask.question: ask for slot in slots for ask in slot.asks}
        return cls(asks, {slot.message: slot.asks for slot in slots}, notes)

    def waits_for(self, ask: Ask) -> list[tuple[Ask, ...]]:
        """Return, for each handler that may hold up a question, the questions for whose answers that handler waits.

        If a handler has begun with the question, only this handler holds it up. Otherwise all handlers of the mailboxes
        that got the question do, and the result is [] if one of the mailboxes has a free handler.
        """
        if ask.question in self.in_hand:
            return [self.in_hand[ask.question]]
        slots = [slot.asks for name in ask.mailboxes for slot in self._note(name).slots]
        return slots if all(self._note(name).slots for name in ask.mailboxes) else []

    def _note(self, mailbox: str) -> ServiceNote:
        return self.notes.get(mailbox) or ServiceNote()

    def dead(self) -> set[str]:
        """Return the questions that can never be answered: they wait for each other, or for other such questions."""
        dead = set(self.asks)
        while True:
            alive = {question for question in dead if not self._is_dead(self.asks[question], dead)}
            if not alive:
                return dead
            dead -= alive

    def _is_dead(self, ask: Ask, dead: set[str]) -> bool:
        slots = self.waits_for(ask)
        return bool(slots) and all(any(each.question in dead for each in asks) for asks in slots)

    def circle(self, question: str, dead: set[str]) -> list[Ask]:
        """Return a shortest circle of questions that wait for each other, from this question on; [] if there is none.

        Args: `dead` are the questions that can never be answered. Only these are searched.
        """
        ways, seen = deque([[self.asks[question]]]), set[str]()
        while ways:
            way = ways.popleft()
            for ask in chain.from_iterable(self.waits_for(way[-1])):
                if ask.question == question:
                    return way
                if ask.question in dead and ask.question not in seen:
                    seen.add(ask.question)
                    ways.append([*way, self.asks[ask.question]])
        return []


class QuestionWatch:
    """A task that checks, from time to time, whether one messager's open questions can still get answers.

    The task ends the wait of a question if no mailbox hosts the asked agent any more, if the service of the agent's
    mailbox has ended, or if handlers wait in a circle for each other's answers. Two checks in succession must find the
    same reason.
    """

    def __init__(self, engine: Engine, questions: OpenQuestions) -> None:
        self._engine = engine
        self._questions = questions
        self._task: asyncio.Task[None] | None = None
        # By the key of a question: why it cannot get an answer, and the circle that it is in, as the last check found.
        self._seen: dict[object, object] = {}

    def begin(self) -> None:
        """Begin to watch, for as long as there are open questions."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="ray_messaging question watch")

    async def close(self) -> None:
        """Stop watching the open questions."""
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
            except MessagingError as error:  # a server that cannot be reached says nothing about the questions
                logger.debug("cannot check whether open questions can still be answered: %s", error)
            pause_s = max(_LOOK_S, _SHARE * (time.monotonic() - began))

    async def _look(self) -> None:
        engine = self._engine
        await engine.frame_sender.refresh()
        asked = [*self._questions.open(engine.directory)]
        notes = await self._notes({name for each in asked for name in each.mailboxes})
        graph = WaitGraph.of(notes)
        dead = graph.dead()
        found: dict[object, object] = {}
        for each in asked:
            circle = graph.circle(each.key, dead) if each.key in dead else []
            why = _hopeless(each, notes) or in_circle((ask.from_id, ask.to_id) for ask in circle)
            # In a circle, only the question with the highest id ends with an error. Then the other handlers can go on.
            if not why or (circle and max(ask.question for ask in circle) != each.key):
                continue
            found[each.key] = why, [ask.question for ask in circle]
            if self._seen.get(each.key) == found[each.key]:
                each.fail(why)
        self._seen = found

    async def _notes(self, mailboxes: Iterable[str]) -> dict[str, ServiceNote]:
        """Return the notes of the given mailboxes, of the mailboxes that their handlers have asked, and so on.

        The keys are the mailboxes. A note lists the questions for whose answers the handlers of its mailbox wait. After
        _MOST_NOTES mailboxes, no more notes are read.
        """
        found: dict[str, ServiceNote] = {}
        asked, left = set[str](), {*mailboxes}
        while left and len(asked) < _MOST_NOTES:
            read = await self._engine.transport.services(left)
            asked |= left
            new = {name: decode_service_note(data) for name, data in read.items()}
            found |= new
            asks = (ask for note in new.values() for slot in note.slots for ask in slot.asks)
            left = {name for ask in asks for name in ask.mailboxes} - asked
        return found


_GONE = (
    "no group hosts the agent any more: its group was removed, or the agent has left it. Messages that waited for "
    "the agent are among the dead letters"
)
_ENDED = (
    "`serve` of {0!r} has ended ({1}). The question waits in the mailbox of {0!r} for the next `serve` or fetch there"
)


def _hopeless(asked: OpenQuestion, notes: Mapping[str, ServiceNote]) -> str:
    """Return why no mailbox will answer a question, or "" if one may still answer it.

    Args: `notes` has the note of each mailbox, which may say why the mailbox's service has ended.
    """
    if not asked.mailboxes:
        return _GONE
    ended = [(name, notes[name].ended) for name in asked.mailboxes if name in notes and notes[name].ended]
    return _ENDED.format(*ended[0]) if len(ended) == len(asked.mailboxes) else ""


def in_circle(pairs: Iterable[tuple[object, object]]) -> str:
    """Return why a question in a circle of waiting agents gets no answer, or "" if there are no pairs.

    Args: `pairs` are pairs of agents of the circle. In each pair, the first agent has asked the second one.
    """
    told = ", ".join(f"agent {one!r} waits for agent {other!r}" for one, other in pairs)
    return told and (
        f"these agents wait in a circle, and none of them has a free handler: {told}. Raise `serve(concurrency=)`, "
        "answer without asking back, or send an ordinary message"
    )
