"""Counts of rules by attempt: those of an attempt at a step that died are taken back."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ray_messaging.interception.server.state.table import Journal, Table
from ray_messaging.model.batch import Batch

_Undo = tuple[str, str, Any]  # group, table, key


class StepAttempts:
    """The attempts at steps that ask for verdicts, by group, and what each has changed in the tables of rules.

    A later attempt at the same step begins with the tables as they were before the earlier one. `undo` holds, by group,
    table and key: step, attempt, and the value before, if there was one. It is saved with the tables.

    Args: `tables` returns the tables of the rules that judge messages, by name; `restored` is called with the names of
    those of which entries were put back.
    """

    def __init__(
        self, tables: Callable[[], Mapping[str, Table[Any]]], restored: Callable[[Collection[str]], None]
    ) -> None:
        self.undo: Table[list[Any]] = Table()
        self._tables = tables
        self._restored = restored
        self._latest: dict[str, tuple[int, int]] = {}  # group -> its step and attempt
        self._changed: dict[str, set[_Undo]] = {}  # group -> its keys in `undo`

    def load(self) -> None:
        """Follow `undo`, which was loaded."""
        self._latest.clear()
        self._changed.clear()
        for key, (step, attempt, *_) in self.undo.items():
            self._latest[key[0]] = max(self._latest.get(key[0], (step, attempt)), (step, attempt))
            self._changed.setdefault(key[0], set()).add(key)

    def run(self, batch: Batch, judge: Callable[[], None]) -> bool:
        """Note what `judge` changes as changes by the batch's attempt; False, and it is not called: that is over."""
        if batch.extension is None or batch.extension.attempt == 0 or not isinstance(batch.step, int):
            judge()
            return True
        group, now = batch.sender, (batch.step, batch.extension.attempt)
        before = self._latest.get(group, (-1, 0))
        if now < before:
            return False
        if now > before:
            self._begin(group, now, again=now[0] == before[0])
        tables = self._tables()
        journals = {name: Journal() for name in tables}
        for name, table in tables.items():
            table.journal = journals[name]
        try:
            judge()
        finally:
            for table in tables.values():
                table.journal = None
            self._note(group, now, journals)
        return True

    def _begin(self, group: str, now: tuple[int, int], *, again: bool) -> None:
        """Begin an attempt: what an earlier one at the same step changed is taken back, and stays otherwise."""
        tables, changed = self._tables(), set[str]()
        for key in self._changed.pop(group, ()):
            _, _, *value = self.undo.pop(key)
            table = tables.get(key[1])
            if again and table is not None:
                table.put_back(key[2], *value)
                changed.add(key[1])
        self._latest[group] = now
        if changed:
            self._restored(changed)

    def _note(self, group: str, now: tuple[int, int], journals: Mapping[str, Journal]) -> None:
        keys = self._changed.setdefault(group, set())
        for name, journal in journals.items():
            for key, value in journal.items():
                place = (group, name, key)
                if place not in keys:
                    keys.add(place)
                    self.undo[place] = [*now, *value]

    def end_step(self) -> None:
        """Forget what could be taken back: all groups have closed the step."""
        self._changed.clear()
        if self.undo:
            self.undo.clear()
