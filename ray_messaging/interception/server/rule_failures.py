"""What rules failed at: counted for each rule, and logged once for each distinct error."""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray_messaging.interception.rules.rule import Rule, said_of

logger = logging.getLogger(__name__)

_DISTINCT = 20  # errors of one rule that are told apart
_CHARS = 300  # of an error
_AGAIN = 10  # a repeated error is logged again when it has come so many times as often
_FURTHER = ("", "", "further errors")


@dataclass(slots=True)
class _Error:
    """Hold what is known of one distinct error."""

    text: str  # of its first occurrence
    where: str
    count: int = 0
    say_at: int = 0


@dataclass(slots=True)
class _Record:
    """Hold what one rule failed at; the rule is kept, so that no other one gets its id."""

    rule: Rule
    count: int = 0
    last: str = ""
    last_at: float = 0.0
    errors: dict[tuple[str, str, str], _Error] = field(default_factory=dict)


class RuleFailures:
    """Count the messages at which rules failed, for as long as these rules are in.

    Two errors are the same where their type and the line that raised them are: what they say may name the message.
    """

    def __init__(self) -> None:
        self._records: dict[int, _Record] = {}

    def note(self, rule: Rule, error: BaseException, messages: int = 1, *, at: str = "") -> None:
        """Count messages at which a rule failed; log the error with its traceback where it is a new one.

        Args: at says what it failed at, where that is no message.
        """
        record = self._records.setdefault(id(rule), _Record(rule))
        text = said_of(error)[:_CHARS]
        record.count += messages
        record.last, record.last_at = text, time.time()
        key = _key(error, text)
        if key not in record.errors and len(record.errors) >= _DISTINCT:
            key = _FURTHER
        found = record.errors.setdefault(key, _Error(text, key[1]))
        found.count += messages
        if found.count >= found.say_at:
            if found.say_at:
                logger.error("rule %r has failed %d times by now: %s (%s)", rule.name, found.count, text, found.where)
            else:
                what = at or f"{messages} message{'s' * (messages != 1)}"
                told = "rule %r failed at %s: %s; repeats of this error are counted, see the rule's `failures`"
                logger.error(told, rule.name, what, text, exc_info=error)
            found.say_at = _AGAIN * max(found.say_at, 1)
            while found.say_at <= found.count:
                found.say_at *= _AGAIN

    def of(self, rule: Rule) -> dict[str, Any]:
        """Return what a rule failed at; {} where it did not.

        `failures` counts messages; `errors` lists the distinct errors, `last_failed_at` is in unix s.
        """
        record = self._records.get(id(rule))
        if record is None:
            return {}
        errors = [{"error": each.text, "where": each.where, "failures": each.count} for each in record.errors.values()]
        return {
            "failures": record.count,
            "on_error": rule.on_error,
            "last_error": record.last,
            "last_failed_at": record.last_at,
            "errors": errors,
        }

    def keep(self, rules: Iterable[Rule]) -> None:
        """Forget the failures of all other rules."""
        stay = {id(rule) for rule in rules}
        self._records = {key: record for key, record in self._records.items() if key in stay}

    def forget(self, rule: Rule) -> None:
        """Forget the failures of one rule."""
        self._records.pop(id(rule), None)


def _key(error: BaseException, text: str) -> tuple[str, str, str]:
    """Return what tells an error from others; one that was never raised is ours, and its text never varies."""
    trace = error.__traceback__
    if trace is None:
        return type(error).__name__, "", text
    while trace.tb_next is not None:
        trace = trace.tb_next
    return type(error).__name__, f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}", ""
