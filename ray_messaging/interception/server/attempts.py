"""Attempts at steps: the changes that a dead attempt has made in the tables of rules are undone."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ray_messaging.interception.server.table import Journal, Table
from ray_messaging.model.batch import Batch

_OPEN = "open"
_Place = tuple[Any, ...]  # group, table, key; then _OPEN if the batch has no answer yet


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
        self._settled: dict[str, set[_Place]] = {}  # group -> its keys in `undo`
        self._open: dict[str, set[_Place]] = {}

    def load(self, answers: Iterable[str]) -> list[str]:
        """Read the attempts from `undo` after it was loaded, and undo what batches without an answer have changed.

        Args: `answers` are the keys of all answers that were loaded.

        Returns: the keys of those that are no longer valid.
        """
        for kept in (self._latest, self._settled, self._open, self.answers):
            kept.clear()
        asked = [(key, found) for key in answers if (found := attempt_of(key)) is not None]
        noted = [Attempt(place[0], value[0], value[1]) for place, value in self.undo.items()]
        for found in (*noted, *(found for _, found in asked)):
            self._latest[found.group] = max(self._latest.get(found.group, found), found)
        self._take_back([place for place in self.undo if place[-1] == _OPEN and len(place) > 3])
        for place in self.undo:
            if len(place) > 1:
                self._settled.setdefault(place[0], set()).add(place)
        for key, found in asked:
            if found == self._latest[found.group]:
                self.answers.setdefault(found.group, set()).add(key)
        return [key for key, found in asked if found != self._latest[found.group]]

    def is_over(self, attempt: Attempt) -> bool:
        """Return whether a later attempt of the group has begun."""
        return attempt < self._latest.get(attempt.group, attempt)

    def keeps(self, key: str) -> bool:
        """Return whether a key is that of an answer to the latest attempt of a group, in its latest step."""
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
        opened, settled = self._open.pop(attempt.group, set()), self._settled.pop(attempt.group, set())
        names = self._take_back(opened)
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
            places = self._open.pop(attempt.group, set()) if done else set()
            opened = {place[:3]: self.undo.pop(place) for place in places}
            for name, journal in journals.items():
                for key, before in journal.items():
                    change = _change(attempt, tables[name], key, before)
                    if change is not None:
                        self._add((attempt.group, name, key), change, opened, done=done)
            for place, change in opened.items():
                self._put(self._settled, place, change)

    def _add(self, place: _Place, change: list[Any], opened: dict[_Place, list[Any]], *, done: bool) -> None:
        if not done:
            self._put(self._open, (*place, _OPEN), change)
        else:
            earlier = opened.pop(place, None)
            self._put(self._settled, place, change if earlier is None else _joined(earlier, change))

    def _put(self, places: dict[str, set[_Place]], place: _Place, change: list[Any]) -> None:
        earlier = self.undo.get(place)
        self.undo[place] = change if earlier is None else _joined(earlier, change)
        places.setdefault(place[0], set()).add(place)

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
        for places in (*self._settled.values(), *self._open.values()):
            for place in [place for place in places if place[1] == table]:
                places.discard(place)
                del self.undo[place]

    def end_step(self) -> None:
        """Forget all changes: all groups have closed the step, so no attempt at it can be undone."""
        self._settled.clear()
        self._open.clear()
        latest = {place: value for place, value in self.undo.items() if len(place) == 1}
        if len(self.undo) > len(latest):
            self.undo.clear()
            self.undo.update(latest)


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
