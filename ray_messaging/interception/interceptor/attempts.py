"""Attempts of groups at steps.

If a group runs a step again, it does so in a new attempt. The new attempt undoes the changes that messages of the
earlier attempt have made in the state of rules.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from ray_messaging.interception.interceptor.rule_tables import Table
from ray_messaging.model.batch import Attempt


def attempt_of(key: str) -> Attempt | None:
    """Return the attempt at a step in which a batch was sent, given the key of the answer to the batch.

    Return None if the batch was sent outside of steps. `saved_answers.key_of` makes the keys.
    """
    sender, place, *_ = key.rsplit(" ", 3) if key.count(" ") > 2 else ("", "")
    number, _, step = place.partition("@")
    return Attempt(sender, int(step), int(number)) if step else None


class StepAttempts:
    """The latest attempt of each group at a step, with the changes that it made in the state of rules.

    If a group runs a step again, it does so in a new attempt. The changes of an attempt are kept apart from the rules'
    tables, in a layer: a new attempt at the same step drops the layer, and the group's next step merges it into the
    tables. While a batch waits for slow rules, the changes that it made are in a second layer, which is not saved. So
    if the interceptor dies, the next interceptor judges the batch anew.

    `kept` has, for each group, the step and the number of the attempt whose layer is saved. `answers` has, for each
    group, the keys of the interceptor's answers to the batches of the latest attempt.

    Args: `tables` returns the tables of the rules that judge messages, by name. `restored` is called with the names of
    tables from which a layer was dropped. `begun` is called with each new attempt, and with the keys of answers that
    are no longer valid.
    """

    def __init__(
        self,
        tables: Callable[[], Mapping[str, Table[Any]]],
        restored: Callable[[Collection[str]], None],
        begun: Callable[[Attempt, Collection[str]], None],
    ) -> None:
        self.kept: Table[list[int]] = Table()
        self.answers: dict[str, set[str]] = {}
        self._tables = tables
        self._restored = restored
        self._begun = begun
        self._latest: dict[str, Attempt] = {}

    def load(self, answers: Iterable[str]) -> list[str]:
        """Read the latest attempt of each group at a step from what an earlier interceptor has saved.

        Args: `answers` has the keys of all saved answers.

        Returns: the keys of the answers that are no longer valid.
        """
        self.answers.clear()
        self._latest = {group: Attempt(group, *place) for group, place in self.kept.items()}
        asked = [(key, found) for key in answers if (found := attempt_of(key)) is not None]
        for _, found in asked:
            self._latest[found.group] = max(self._latest.get(found.group, found), found)
        for key, found in asked:
            if found == self._latest[found.group]:
                self.answers.setdefault(found.group, set()).add(key)
        return [key for key, found in asked if found != self._latest[found.group]]

    def keeps(self, key: str) -> bool:
        """Return whether a key belongs to the answer to a batch of a group's latest attempt at a step."""
        found = attempt_of(key)
        return found is not None and key in self.answers.get(found.group, ())

    def enter(self, attempt: Attempt) -> bool:
        """Begin an attempt at a step, unless it has begun already.

        Return False if the group has begun a later attempt, otherwise True.
        """
        group, before = attempt.group, self._latest.get(attempt.group)
        if before is not None and attempt <= before:
            return attempt == before
        self._latest[group] = attempt
        if before is None or before.number != attempt.number:
            self._keep(attempt)
        again = before is not None and attempt.step == before.step
        names: list[str] = []
        for name, table in self._tables().items():
            dropped = table.drop((group,))
            if again:
                dropped |= table.drop(group)
            else:
                table.settle(group)
            if dropped:
                names.append(name)
        if names:
            self._restored(names)
        self._begun(attempt, self.answers.pop(group, set()))
        return True

    def note(self, attempt: Attempt, judge: Callable[[], bool]) -> None:
        """Call `judge`, and record which changes it makes in the rules' state, so that a later attempt can undo them.

        Args: `judge` returns True if all verdicts on the batch are known, and False if the batch waits for a slow rule.
        """
        tables = self._tables().values()
        for table in tables:
            table.begin_layer()
        done = False
        try:
            done = judge()
        finally:
            for table in tables:
                if table.end_layer(attempt.group, done=done):
                    self._keep(attempt)

    def _keep(self, attempt: Attempt) -> None:
        group, *place = attempt
        if self.kept.get(group) != place:
            self.kept[group] = place

    def end_step(self) -> None:
        """Make the changes of all attempts at a step final, because the step has ended for all groups."""
        for table in self._tables().values():
            table.settle()
