"""Changes of an interceptor's rules: at once, or for a step and all later ones."""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from ray_messaging.cluster.rule_store import RuleStore, description
from ray_messaging.cluster.spec import ScheduledChange
from ray_messaging.errors import RuleError
from ray_messaging.eventlog.records import RuleChange
from ray_messaging.interception.rules import Rule
from ray_messaging.interception.server.interceptor import Interceptor
from ray_messaging.interception.server.rule_set import RuleSet

logger = logging.getLogger(__name__)

_CHANGES = 10_000  # that are kept for people


class RuleRequest(NamedTuple):
    """One change of the rules: insert, replace or remove; `which` is a position or a name.

    `call` is the name of the call: one that Ray repeats after a restart finds its change already made.
    """

    call: str
    change: str
    which: int | str | None
    rule: Rule | None = None

    def make(self, rules: RuleSet) -> Rule:
        """Make the change; return the rule. Raises RuleError."""
        if self.change == "insert":
            return rules.insert(self.rule, self.which)  # type: ignore[arg-type]  # a wrong place is refused there
        assert self.which is not None
        return rules.pop(self.which) if self.change == "remove" else rules.replace(self.which, self.rule)


class RuleSchedule:
    """Changes of the rules that wait for their step, and a record of all changes; `store` keeps both.

    Args: `rules` returns the interceptor; `save` stores the rules of now and the schedule.
    """

    def __init__(
        self, store: RuleStore, interceptor: Callable[[], Interceptor], save: Callable[[], Awaitable[None]]
    ) -> None:
        self._store = store
        self._interceptor = interceptor
        self.save = save

    @property
    def waits(self) -> bool:
        """Tell whether changes wait for their step."""
        return bool(self._store.scheduled)

    def make(self, request: RuleRequest, step: int | None, *, whole: bool = False) -> dict[str, Any]:
        """Make a change at once, in an open step (-1: none has begun); return the rule's description.

        Args: `whole` says that nobody has begun the step.
        Raises: RuleError.
        """
        if request.call in self._store.calls:
            return dict(self._store.calls[request.call])
        described = description(request.make(self._interceptor().rules))
        self._store.calls[request.call] = described
        self.note(request.change, described, step, exact=whole)
        return described

    def add(self, request: RuleRequest, at_step: int) -> dict[str, Any]:
        """Schedule a change; return the rule's description. Raises RuleError where it could not be made then."""
        if request.call in self._store.calls:
            return dict(self._store.calls[request.call])
        pickled = None if request.rule is None else self._store.pickle_of(request.rule)
        wanted = ScheduledChange(at_step, request.call, request.change, request.which, pickled)
        scheduled = sorted([*self._store.scheduled, wanted], key=lambda change: change.at_step)
        _check_names(self._interceptor().rules.names, scheduled)
        found = request.rule or self._found(request.which)
        described = {"name": request.which} if found is None else description(found)
        self._store.scheduled = scheduled
        self._interceptor().delegation.restart()  # nothing is delegated until then
        self._store.calls[request.call] = described
        self.note(request.change, described, at_step, exact=True)
        return described

    def _found(self, which: int | str | None) -> Rule | None:
        rules = self._interceptor().rules
        return rules.get(which) if isinstance(which, int) or which in rules.names else None

    async def apply(self, step: int) -> None:
        """Make the changes that apply to a step, and store them; nothing of the step was judged."""
        due = [change for change in self._store.scheduled if change.at_step <= step]
        if not due:
            return

        def make() -> None:
            self._store.scheduled = [change for change in self._store.scheduled if change not in due]
            for change in due:
                rule = None if change.rule is None else self._store.admit(change.rule)
                try:
                    RuleRequest(change.call, change.change, change.which, rule).make(self._interceptor().rules)
                except RuleError as error:  # another change has come in between
                    logger.error("a change of the rules for step %d cannot be made: %s", step, error)  # noqa: TRY400
                    self.note(f"{change.change} failed: {error}", {"name": change.which}, step, exact=True)

        await self._interceptor().change(make, also=self.save)

    def note(self, change: str, rule: dict[str, Any], step: int | None, *, exact: bool = False) -> None:
        """Record a change that applies from a step on, or, unless it is exact, from the middle of an open step."""
        if step is not None and step < 0:
            step, exact = 0, True
        self._store.changes.append(RuleChange(time.time(), change, rule, step, exact))
        del self._store.changes[:-_CHANGES]
        if step is not None and not exact:
            logger.warning(
                "the rules have changed in the middle of step %d, so its digest need not be that of another run: with "
                "at_step= a change applies to whole steps",
                step,
            )


def _check_names(names: Sequence[str], scheduled: Sequence[ScheduledChange]) -> None:
    """Raise RuleError for a change that finds no such rule, or another one of its name, in its step."""
    there = list(names)
    for change in scheduled:
        which = change.which
        if change.change != "insert":
            if isinstance(which, str) and which in there:
                there.remove(which)
            elif isinstance(which, int) and -len(there) <= which < len(there):
                del there[which]
            else:
                raise RuleError(
                    f"there is no rule {which!r} in step {change.at_step}: the rules are then "
                    + (", ".join(map(repr, there)) or "none"),
                    rule=str(which),
                )
        if change.rule is not None:
            if change.rule.name in there:
                raise RuleError(
                    f"there is a rule named {change.rule.name!r} in step {change.at_step} already: give this one "
                    "another name",
                    rule=change.rule.name,
                )
            there.append(change.rule.name)
