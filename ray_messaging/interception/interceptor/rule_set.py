"""The rules of one interceptor, in order, and the failures of each rule."""

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray_messaging.addressing.channels import NAME_LENGTH
from ray_messaging.common.texts import short_repr
from ray_messaging.errors import RuleError
from ray_messaging.interception.rules.black_list import BlackList
from ray_messaging.interception.rules.rule import Rule, SlowRule, StepRule, text_of

if TYPE_CHECKING:
    from ray_messaging.interception.interceptor.interceptor import Interceptor

logger = logging.getLogger(__name__)

_DISTINCT = 20  # how many distinct errors are recorded for one rule; all further errors share one record
_CHARS = 300  # an error's text is cut to this many characters
_FURTHER = ("", "", "further errors")


class RuleSet:
    """Rules in order, each with a unique name.

    `now` is the tuple of the current rules. Each change replaces it. `each` has the rules that judge messages one by
    one. `for_broadcasts` has the same rules, but the rules that judge pairs of sender and hearer come first. `whole`
    has the rules that judge a whole step.

    Raises: RuleError if the rules are neither a list nor a tuple, for an object that is no rule, and for a name that
    another rule has.
    """

    def __init__(self, rules: Iterable[Rule] = (), context: "Interceptor | None" = None) -> None:
        if isinstance(rules, Rule):
            raise RuleError(f"rules must be a list: write rules=[{rules.name}]", rule=rules.name)
        if not isinstance(rules, list | tuple):
            raise RuleError(f"rules must be a list of rules, not {rules!r}", rule=repr(rules))
        self.now: tuple[Rule, ...] = ()
        self.each: tuple[Rule, ...] = ()
        self.for_broadcasts: tuple[Rule, ...] = ()
        self.whole: tuple[StepRule, ...] = ()
        self._context = context
        self.wants_payload = False
        for rule in rules:
            self.insert(rule)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.now)

    def __len__(self) -> int:
        return len(self.now)

    @property
    def names(self) -> list[str]:
        """Return the names of the rules, in order."""
        return [rule.name for rule in self.now]

    def find(self, which: int | str) -> int:
        """Return the position of a rule, given by position or name; raise RuleError if there is no such rule."""
        if isinstance(which, str) and which in self.names:
            return self.names.index(which)
        if isinstance(which, int) and not isinstance(which, bool) and -len(self) <= which < len(self):
            return which % len(self)
        raise RuleError(
            f"there is no rule {which!r}: the rules are " + (", ".join(map(repr, self.names)) or "none"),
            rule=str(which),
        )

    def get(self, which: int | str) -> Rule:
        """Return a rule, given by position or name; raise RuleError if there is no such rule."""
        return self.now[self.find(which)]

    def insert(self, rule: object, index: int | None = None) -> Rule:
        """Insert a rule before the rule at `index` (None: at the end), and return it; raise RuleError if it is no rule.

        An invalid name or setting, and the name of another rule, raise a RuleError, too.
        """
        return self._put(rule, [*self.now], len(self) if index is None else _place(index))

    def replace(self, which: int | str, rule: object) -> Rule:
        """Replace a rule, and return the new one.

        Raises: RuleError if there is no such rule, or the new rule is not valid.
        """
        place = self.find(which)
        return self._put(rule, [*self.now[:place], *self.now[place + 1 :]], place)

    def pop(self, which: int | str = -1) -> Rule:
        """Remove a rule and return it.

        The rule can still judge, because messages that wait for slow rules may still need it.
        """
        place = self.find(which)
        rule = self.now[place]
        self._set([*self.now[:place], *self.now[place + 1 :]])
        return rule

    def _put(self, given: object, others: list[Rule], place: int) -> Rule:
        rule = valid_rule(given)
        if any(rule.name == other.name for other in others):
            raise RuleError(
                f"a rule is named {rule.name!r} already: give the new rule another name, by name= or by its attribute "
                "`name`",
                rule=rule.name,
            )
        others.insert(place, rule)
        rule.context = self._context
        self._set(others)
        return rule

    def _set(self, rules: list[Rule]) -> None:
        self.now = tuple(rules)
        self.each = tuple(rule for rule in rules if not isinstance(rule, StepRule))
        self.for_broadcasts = tuple(
            sorted(  # rules that judge pairs of sender and hearer come first
                self.each,
                key=lambda rule: rule.judges_broadcasts != "pair" and type(rule).pair_check is Rule.pair_check,
            )
        )
        self.whole = tuple(rule for rule in rules if isinstance(rule, StepRule))
        self.wants_payload = any(rule.needs_payload for rule in rules)

    @property
    def black_list(self) -> BlackList:
        """Return the first black list. If there is none, insert an empty black list before all other rules."""
        for rule in self.now:
            if isinstance(rule, BlackList):
                return rule
        made = BlackList()
        self.insert(made, 0)
        return made


def valid_rule(rule: object) -> Rule:
    """Return an object that is a rule with valid attributes; raise RuleError for any other object."""
    if not isinstance(rule, Rule):
        why = f"{rule!r} is not a rule: pass an instance of a class derived from ray_messaging.rules.Rule"
        raise RuleError(why, rule=repr(rule))
    name: object = rule.name
    if not (isinstance(name, str) and 0 < len(name) <= NAME_LENGTH and name.isprintable() and name[0] != ":"):
        raise RuleError(
            f"a rule of the class {type(rule).__name__!r} has the invalid name {short_repr(rule.name)}: pass a name "
            f"of 1 to {NAME_LENGTH} printable characters that does not begin with a colon",
            rule=repr(rule),
        )
    if rule.judges_broadcasts not in ({"message"} if isinstance(rule, SlowRule) else {"pair", "message"}):
        known = (
            "'message', because a SlowRule judges a broadcast once"
            if isinstance(rule, SlowRule)
            else "'pair' or 'message'"
        )
        wrong = f"rule {rule.name!r} has judges_broadcasts={rule.judges_broadcasts!r}: write {known}"
        raise RuleError(wrong, rule=rule.name)
    return rule


def _place(index: object) -> int:
    if isinstance(index, int) and not isinstance(index, bool):
        return index
    raise RuleError(f"{index!r} is not a position among the rules: write an int, or None for the end", rule="")


@dataclass(slots=True)
class _Error:
    """One distinct error of a rule, with how often it has occurred."""

    text: str  # the error's text when it first occurred
    where: str
    count: int


@dataclass(slots=True)
class _Record:
    """The failures of one rule. The reference to the rule makes sure that no other object gets the rule's id()."""

    rule: Rule
    last: str = ""
    last_at: float = 0.0
    errors: dict[tuple[str, str, str], _Error] = field(default_factory=dict)


class RuleFailures:
    """Counts of the messages on which the current rules have failed.

    Two errors count as one if they have the same type and the same line of code has raised them. Their texts may
    differ, because a text may name the message.
    """

    def __init__(self) -> None:
        self._records: dict[int, _Record] = {}

    def note(self, rule: Rule, error: BaseException, messages: int = 1, *, at: str = "") -> None:
        """Count messages on which a rule has failed. A new error is logged with its traceback.

        Args: `at` says in the log what the rule was doing, if it was not judging messages.
        """
        record = self._records.setdefault(id(rule), _Record(rule))
        text = text_of(error)[:_CHARS]
        record.last, record.last_at = text, time.time()
        key = _key(error, text)
        if key not in record.errors and len(record.errors) >= _DISTINCT:
            key = _FURTHER
        found = record.errors.get(key)
        if found is None:
            record.errors[key] = _Error(text, key[1], messages)
            call = at or f"{messages} message{'s' * (messages != 1)}"
            line = "rule %r failed at %s: %s; repeats of this error are counted, see the rule's `failures`"
            logger.error(line, rule.name, call, text, exc_info=error)
            return
        digits = len(str(found.count))
        found.count += messages
        if len(str(found.count)) > digits:  # a repeated error is logged again after 10, 100, ... messages
            logger.error("rule %r has failed %d times by now: %s (%s)", rule.name, found.count, text, found.where)

    def of(self, rule: Rule) -> dict[str, Any]:
        """Return a rule's failures in JSON's types; {} if it has not failed.

        `failures` counts the messages on which the rule has failed, and its failed calls for other purposes. `on_error`
        says what happens to a message on which the rule fails: "block" or "allow". `last_error` and `last_failed_at`
        are the text and the time of the last failure. `errors` has each distinct error: its text, where it was raised,
        and how many failures it caused.
        """
        record = self._records.get(id(rule))
        if record is None:
            return {}
        errors = [{"error": each.text, "where": each.where, "failures": each.count} for each in record.errors.values()]
        return {
            "failures": sum(each.count for each in record.errors.values()),
            "on_error": rule.on_error,
            "last_error": record.last,
            "last_failed_at": record.last_at,
            "errors": errors,
        }

    def keep(self, rules: Iterable[Rule]) -> None:
        """Forget the failures of all rules except these."""
        stay = {id(rule) for rule in rules}
        self._records = {key: record for key, record in self._records.items() if key in stay}

    def forget(self, rule: Rule) -> None:
        """Forget the failures that were recorded for one rule."""
        self._records.pop(id(rule), None)


def _key(error: BaseException, text: str) -> tuple[str, str, str]:
    """Return a key that is the same for all errors of one type that the same line of code has raised.

    An error without a traceback was made by this library, and has no line of code. The key has its text instead.
    """
    trace = error.__traceback__
    if trace is None:
        return type(error).__name__, "", text
    while trace.tb_next is not None:
        trace = trace.tb_next
    return type(error).__name__, f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}", ""
