"""Attempts at steps: their batches on the way through the rules, and the undoing of what a dead attempt has changed."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ray_messaging.interception.rules.rule import Rule, SlowRule, Verdict
from ray_messaging.interception.server.rule_pipeline import Asked
from ray_messaging.interception.server.rule_tables import Journal, Table
from ray_messaging.interception.verdicts import BatchVerdict
from ray_messaging.model.batch import Batch

logger = logging.getLogger(__name__)

_SLICE = 64  # messages that a slow rule is asked about before other tasks get a turn
_OPEN = "open"
_Place = tuple[Any, ...]  # group, table, key; then _OPEN if the batch has no answer yet
Ask = Callable[[SlowRule, Batch], Awaitable[Verdict]]


class Attempt(NamedTuple):
    """An attempt of a group at a step. A later attempt compares greater."""

    group: str
    step: int
    number: int


def attempt_at(batch: Batch) -> Attempt | None:
    """Return the attempt at a step to which a batch belongs, or None if it belongs to no step."""
    if batch.extension is None or batch.extension.attempt == 0 or batch.step is None:
        return None
    step = int(batch.step[0]) if isinstance(batch.step, np.ndarray) else batch.step
    return Attempt(batch.sender, step, batch.extension.attempt)


def attempt_of(key: str) -> Attempt | None:
    """Return the attempt in the key of a batch's answer (see `answers.key_of`), or None if it is of no step."""
    sender, place, *_ = key.rsplit(" ", 3) if key.count(" ") > 2 else ("", "")
    number, _, step = place.partition("@")
    return Attempt(sender, int(step), int(number)) if step else None


class StepAttempts:
    """The attempts at steps that ask for verdicts, by group, and what each attempt has changed in the tables of rules.

    A later attempt at the same step begins with the tables as they were before the earlier one. `undo` says how to
    restore them. It is a table by group, table and key, and is saved with the tables. Each value begins with the step
    and the attempt. For an entry that is a count, how much was added to it follows, and whether it existed before:
    agents of other groups may have counted there since. For any other entry None follows, and the previous value, if
    there was one.

    A batch that waits for slow rules has no answer yet. What it has changed is under keys that end in _OPEN, so that a
    successor of the interceptor can judge the batch anew. The latest attempt of a group is under the group alone.

    `answers` has, for each group, the keys of the answers to its latest attempt in its latest step.

    Args: `tables` returns the tables of the rules that judge messages, by name. `restored` is called with the names of
    the tables in which entries were restored. `begun` is called with each new attempt, and the keys of the answers that
    are no longer valid.
    """

    def __init__(
        self,
        tables: Callable[[], Mapping[str, Table[Any]]],
        restored: Callable[[Collection[str]], None],
        begun: Callable[[Attempt, Collection[str]], None],
    ) -> None:
        self.undo: Table[list[Any]] = Table()
        self.answers: dict[str, set[str]] = {}
        self._tables = tables
        self._restored = restored
        self._begun = begun
        self._latest: dict[str, Attempt] = {}
        # The keys in `undo` by group. Keys of batches without an answer are kept apart: `note` looks only at them.
        self._places: dict[tuple[str, bool], set[_Place]] = {}

    def load(self, answers: Iterable[str]) -> list[str]:
        """Read the attempts from `undo` after it was loaded, and undo what batches without an answer have changed.

        Args: `answers` are the keys of all answers that were loaded.

        Returns: the keys of those that are no longer valid.
        """
        for kept in (self._latest, self._places, self.answers):
            kept.clear()
        asked = [(key, found) for key in answers if (found := attempt_of(key)) is not None]
        noted = [Attempt(place[0], value[0], value[1]) for place, value in self.undo.items()]
        for found in (*noted, *(found for _, found in asked)):
            self._latest[found.group] = max(self._latest.get(found.group, found), found)
        self._take_back([place for place in self.undo if _is_open(place)])
        for place in self.undo:
            if len(place) > 1:
                self._places.setdefault((place[0], False), set()).add(place)
        for key, found in asked:
            if found == self._latest[found.group]:
                self.answers.setdefault(found.group, set()).add(key)
        return [key for key, found in asked if found != self._latest[found.group]]

    def is_over(self, attempt: Attempt) -> bool:
        """Return whether a later attempt of the group has begun."""
        return attempt < self._latest.get(attempt.group, attempt)

    def keeps(self, key: str) -> bool:
        """Return whether a key belongs to an answer to the latest attempt of a group, in the group's latest step."""
        found = attempt_of(key)
        return found is not None and key in self.answers.get(found.group, ())

    def enter(self, attempt: Attempt) -> bool:
        """Begin an attempt, or a later step of it, unless it has begun; return False if a later attempt has begun."""
        before = self._latest.get(attempt.group)
        if before is not None and attempt <= before:
            return attempt == before
        self._latest[attempt.group] = attempt
        if before is None or before.number != attempt.number:
            self.undo[(attempt.group,)] = [attempt.step, attempt.number]
        opened, settled = (self._places.pop((attempt.group, each), set()) for each in (True, False))
        names = self._take_back(opened)  # first, as an open batch has changed an entry last
        if before is not None and attempt.step == before.step:
            names |= self._take_back(settled)
        else:
            for place in settled:
                del self.undo[place]
        if names:
            self._restored(names)
        self._begun(attempt, self.answers.pop(attempt.group, set()))
        return True

    def note(self, attempt: Attempt, judge: Callable[[], bool]) -> None:
        """Call `judge`, which returns whether the batch has its answer, and record what it changes in the tables."""
        tables = self._tables()
        journals = {name: Journal() for name in tables}
        for name, table in tables.items():
            table.journal = journals[name]
        done = False
        try:
            done = judge()
        finally:
            for table in tables.values():
                table.journal = None
            ended = self._places.pop((attempt.group, True), set()) if done else set()
            opened = {place[:3]: self.undo.pop(place) for place in ended}
            for name, journal in journals.items():
                for key, before in journal.items():
                    change = _change(attempt, tables[name], key, before)
                    if change is not None:
                        place = (attempt.group, name, key)
                        earlier = opened.pop(place, None)
                        change = change if earlier is None else _joined(earlier, change)
                        self._put(place if done else (*place, _OPEN), change)
            for place, change in opened.items():
                self._put(place, change)

    def _put(self, place: _Place, change: list[Any]) -> None:
        earlier = self.undo.get(place)
        self.undo[place] = change if earlier is None else _joined(earlier, change)
        self._places.setdefault((place[0], _is_open(place)), set()).add(place)

    def _take_back(self, places: Iterable[_Place]) -> set[str]:
        """Undo changes; return the names of the tables."""
        tables, names = self._tables(), set[str]()
        for place in places:
            _, _, *change = self.undo.pop(place)
            if place[1] in tables:
                _put_back(tables[place[1]], place[2], *change)
                names.add(place[1])
        return names

    def forget(self, table: str) -> None:
        """Forget the changes of a table, because another table has replaced it."""
        for places in self._places.values():
            for place in [place for place in places if place[1] == table]:
                places.discard(place)
                del self.undo[place]

    def end_step(self) -> None:
        """Forget all changes: all groups have closed the step, so no attempt at it can be undone."""
        self._places.clear()
        latest = {place: value for place, value in self.undo.items() if len(place) == 1}
        if len(self.undo) > len(latest):
            self.undo.clear()
            self.undo.update(latest)


def _is_open(place: _Place) -> bool:
    return len(place) > 3


def _change(attempt: Attempt, table: Table[Any], key: Any, before: tuple[Any, ...]) -> list[Any] | None:  # noqa: ANN401
    after = (table[key],) if key in table else ()
    if after == before:
        return None
    if all(type(value) is int for value in (*before, *after)):
        return [attempt.step, attempt.number, sum(after) - sum(before), len(before)]
    return [attempt.step, attempt.number, None, *before]


def _joined(earlier: list[Any], later: list[Any]) -> list[Any]:
    """Return two successive changes of one entry as one change."""
    step, number, added, *before = earlier
    if added is None:
        return earlier
    if later[2] is None:  # a count has become something else
        count = sum(value for value in later[3:] if type(value) is int) - added
        return [step, number, None, *([count] if before[0] or count else [])]
    return [step, number, added + later[2], *before]


def _put_back(table: Table[Any], key: Any, added: int | None, *before: Any) -> None:  # noqa: ANN401 - JSON
    if added is None:
        table.put_back(key, *before)
        return
    now = table.get(key, 0)
    if type(now) is int and (key in table or added < 0):  # else it was reset in the meantime
        table.put_back(key, *([now - added] if now != added or before[0] else []))


class Judging(NamedTuple):
    """A batch of an attempt, its verdict so far, and how far its rules are.

    `sections` yields each time a slow rule must be asked.
    """

    batch: Batch
    attempt: Attempt
    verdict: BatchVerdict
    rules: Sequence[Rule]
    sections: Generator[Asked, Sequence[Verdict], None]


class StepBatches:
    """Batches of steps that wait for slow rules.

    The rules up to a slow rule, and those after it, are applied to the whole batch at once. What they change is
    recorded for the attempt, so that it can be undone. A later attempt of the group ends the wait.

    Args: `ask` asks a slow rule about one message.
    """

    def __init__(self, attempts: StepAttempts, ask: Ask) -> None:
        self.running: dict[str, tuple[Judging, asyncio.Task[bytes]]] = {}  # by the batch's key
        self._attempts = attempts
        self._ask = ask

    def __len__(self) -> int:
        return sum(judging.batch.rows for judging, _ in self.running.values())

    def advance(self, judging: Judging, verdicts: Sequence[Verdict] | None = None) -> Asked | None:
        """Apply the rules, from a slow rule's verdicts on, up to the next slow one; return what to ask it, or None."""
        asked: Asked | None = None

        def judge() -> bool:
            nonlocal asked
            try:
                asked = judging.sections.send(verdicts)  # type: ignore[arg-type]  # None begins
            except StopIteration:
                return True
            return False

        self._attempts.note(judging.attempt, judge)
        return asked

    def start(self, key: str, judging: Judging, answer: Coroutine[None, None, bytes]) -> asyncio.Task[bytes]:
        """Start the task that answers about a batch. It is in `running`, under the batch's key, until it is done."""
        task = asyncio.create_task(answer, name="ray_messaging answer in a step")
        self.running[key] = judging, task
        task.add_done_callback(lambda _: self._ended(key, task))
        return task

    def _ended(self, key: str, task: asyncio.Task[bytes]) -> None:
        del self.running[key]
        if not task.cancelled() and task.exception() is not None:  # the sender asks again
            logger.error("an answer in a step is lost", exc_info=task.exception())

    async def ask_all(self, asked: Asked) -> list[Verdict]:
        """Return a slow rule's verdicts on messages."""
        rule, messages = asked
        calls: list[asyncio.Future[Verdict]] = []
        try:
            for number, message in enumerate(messages, 1):
                calls.append(asyncio.ensure_future(self._ask(rule, message)))
                if number % _SLICE == 0:
                    await asyncio.sleep(0)
            return await asyncio.gather(*calls)
        finally:
            for call in calls:
                call.cancel()

    def begun(self, attempt: Attempt) -> None:
        """Cancel the batches of earlier attempts of a group, because a new attempt has begun."""
        for judging, task in self.running.values():
            if judging.attempt.group == attempt.group and judging.attempt != attempt:
                task.cancel()

    async def done_with(self, rule: Rule) -> None:
        """Return once a rule is no longer needed by any of the batches that wait now."""
        tasks = [task for judging, task in self.running.values() if any(other is rule for other in judging.rules)]
        if tasks:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Cancel all batches that wait."""
        tasks = [task for _, task in self.running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
