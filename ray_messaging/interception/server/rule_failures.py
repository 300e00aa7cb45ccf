"""Failures of rules: counted by rule, and logged once for each distinct error."""

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray_messaging.interception.rules.rule import Rule, text_of

logger = logging.getLogger(__name__)

_DISTINCT = 20  # distinct errors kept for one rule
_CHARS = 300  # kept of an error's text
_AGAIN = 10  # a repeated error is logged again each time its count has grown by this factor
_FURTHER = ("", "", "further errors")


@dataclass(slots=True)
class _Error:
    """One distinct error of a rule."""

    text: str  # of the first occurrence
    where: str
    count: int = 0
    log_at: int = 0


@dataclass(slots=True)
class _Record:
    """The failures of one rule; the rule is kept, so that no other object gets its id."""

    rule: Rule
    count: int = 0
    last: str = ""
    last_at: float = 0.0
    errors: dict[tuple[str, str, str], _Error] = field(default_factory=dict)


class RuleFailures:
    """Counts of the messages at which the current rules failed.

    Errors are the same if their type and the line that raised them are; their texts may name the message, and differ.
    """

    def __init__(self) -> None:
        self._records: dict[int, _Record] = {}

    def note(self, rule: Rule, error: BaseException, messages: int = 1, *, at: str = "") -> None:
        """Count messages at which a rule failed; log a new error with its traceback.

        Args:
            at: names the failed call, if it was not a verdict on messages.
        """
        record = self._records.setdefault(id(rule), _Record(rule))
        text = text_of(error)[:_CHARS]
        record.count += messages
        record.last, record.last_at = text, time.time()
        key = _key(error, text)
        if key not in record.errors and len(record.errors) >= _DISTINCT:
            key = _FURTHER
        found = record.errors.setdefault(key, _Error(text, key[1]))
        found.count += messages
        if found.count >= found.log_at:
            if found.log_at:
                logger.error("rule %r has failed %d times by now: %s (%s)", rule.name, found.count, text, found.where)
            else:
                call = at or f"{messages} message{'s' * (messages != 1)}"
                line = "rule %r failed at %s: %s; repeats of this error are counted, see the rule's `failures`"
                logger.error(line, rule.name, call, text, exc_info=error)
            found.log_at = _AGAIN * max(found.log_at, 1)
            while found.log_at <= found.count:
                found.log_at *= _AGAIN

    def of(self, rule: Rule) -> dict[str, Any]:
        """Return a rule's failures as JSON; {} if there are none.

        `failures` counts messages, `errors` lists the distinct errors, `last_failed_at` is in unix seconds.
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
        """Drop the failures of all other rules."""
        stay = {id(rule) for rule in rules}
        self._records = {key: record for key, record in self._records.items() if key in stay}

    def forget(self, rule: Rule) -> None:
        """Drop the failures of one rule."""
        self._records.pop(id(rule), None)


def _key(error: BaseException, text: str) -> tuple[str, str, str]:
    """Return the identity of an error; one that was never raised is ours, and its text never varies."""
    trace = error.__traceback__
    if trace is None:
        return type(error).__name__, "", text
    while trace.tb_next is not None:
        trace = trace.tb_next
    return type(error).__name__, f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}", ""
