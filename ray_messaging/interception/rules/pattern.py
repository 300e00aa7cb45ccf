"""Look for words and regexes in what is said."""

import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import regex

from ray_messaging.errors import RuleError
from ray_messaging.interception.rules.rule import ALLOW, Rule, Verdict, block, label, rewrite
from ray_messaging.interception.rules.support.texts import decoded, plain, replaced, said, strings
from ray_messaging.interception.rules.support.words import Words
from ray_messaging.model.batch import Batch

MASK = "***"
# So many messages of a batch may use up their time; then the rest is not looked at, as others wait for verdicts.
_RUNAWAYS = 20
_SHORT = 0.1


class Pattern(Rule):
    r"""Block, label or mask messages that hold a word or match a regex, whoever sends them, the user too.

    Args: words are found on word boundaries, phrases across any white space; regexes are those of the `regex` package,
    searched in each string. Both look at all strings in the payload (not at its keys, nor at a Msg's class, role, id
    and time), or only at those in `field`, as Unicode NFKC without invisible characters and piled-up marks; look-alikes
    of other scripts (a Cyrillic a) stay what they are. time_limit_s is what regexes may take for one message, in
    seconds of CPU time: one that takes longer has run away, and the rule fails on the message, which blocks it unless
    on_error is "allow". action: "label" puts the rule's name on the message, "mask" rewrites it with *** in place of
    what was found.
    Raises RuleError, naming the regex that does not compile.
    """

    needs_payload = True

    def __init__(
        self,
        words: Iterable[str] = (),
        regexes: Iterable[str] = (),
        *,
        field: str | None = None,
        ignore_case: bool = True,
        time_limit_s: float = 0.05,
        action: Literal["block", "label", "mask"] = "block",
        name: str = "pattern",
    ) -> None:
        self.name = name
        self.words = _listed("words", words, name)
        self.regexes = _listed("regexes", regexes, name)
        if not self.words and not self.regexes:
            raise RuleError("there is nothing to look for: give words, regexes, or both", rule=name)
        if action not in ("block", "label", "mask"):
            raise RuleError(f"action={action!r} is unknown: write 'block', 'label' or 'mask'", rule=name)
        if not isinstance(field, str | None):
            raise RuleError(f"field={field!r} is no field of a payload: give a str", rule=name)
        if isinstance(time_limit_s, bool) or not isinstance(time_limit_s, int | float) or not 0 < time_limit_s < 1e6:
            raise RuleError(f"time_limit_s={time_limit_s!r} is no limit: give seconds above 0", rule=name)
        self.field = field
        self.ignore_case = ignore_case
        self.time_limit_s = time_limit_s
        self.action = action
        self._words = Words(self.words, fold=ignore_case, rule=name)
        self._regexes = [_compiled(text, regex.IGNORECASE if ignore_case else 0, name) for text in self.regexes]

    def check_batch(self, batch: Batch, exp_id: str) -> Mapping[int, Verdict]:  # noqa: ARG002 - a Rule's
        """Judge a batch; a line that several messages share is looked at once."""
        assert batch.lines is not None
        lines = batch.lines.list
        suspects = range(len(lines)) if self._regexes else self._suspects(lines)
        found: dict[int, Verdict] = {}
        ran_away = 0
        for line in suspects:
            try:
                if ran_away >= _RUNAWAYS:
                    raise TimeoutError(f"regexes ran away on {ran_away} other messages of this batch")  # noqa: TRY301
                verdict = self._judge(lines[line])
            except TimeoutError as error:
                ran_away += 1
                verdict = self.count_failure(error)
            except Exception as error:  # noqa: BLE001 - one odd payload must not stop the whole batch
                verdict = self.count_failure(error)
            if verdict is not ALLOW:
                found[line] = verdict
        if batch.lines.index is None or not found:
            return found
        return {row: found[line] for row, line in enumerate(batch.lines.index.tolist()) if line in found}

    def _suspects(self, lines: list[bytes]) -> list[int]:
        may_hit = self._words.may_hit
        return [number for number, line in enumerate(lines) if may_hit(line)]

    def _judge(self, line: bytes) -> Verdict:
        payload = decoded(line)
        field = self.field if isinstance(payload, dict) else None
        value = said(payload) if field is None else payload.get(field)
        clock = _Clock(self.time_limit_s)
        found = next((what for text in strings(value) if (what := self._found(text, clock))), None)
        if found is None:
            return ALLOW
        if self.action == "label":
            return label(self.name)
        if self.action == "mask" and isinstance(payload, dict):
            masked = replaced(value, lambda text: self._masked(text, clock))
            return rewrite({**payload, **masked} if field is None else {**payload, field: masked})
        return block(f"the payload holds {found}")

    def _found(self, text: str, clock: "_Clock") -> str | None:
        """Return what is found in a text, for people to read."""
        if self.words:
            hits = self._words.hits(plain(text, fold=self.ignore_case))
            if hits:
                return f"the word {hits[0].given!r}"
        if self._regexes:
            shown = plain(text, fold=False)
            for compiled in self._regexes:
                if clock.search(compiled, shown):
                    return f"what matches {compiled.pattern!r}"
        return None

    def _masked(self, text: str, clock: "_Clock") -> str:
        shown = plain(text, fold=False)
        masked = shown
        for word in self._words.hits(plain(text, fold=self.ignore_case)):
            masked = self._words.pattern(word, any_case=self.ignore_case).sub(MASK, masked)
        if self._words.hits(plain(masked, fold=self.ignore_case)):
            return MASK  # found only when folded: rather all of it than a word too much
        for compiled in self._regexes:
            masked = clock.sub(compiled, masked)
        return text if masked == shown else masked

    def describe(self) -> dict[str, Any]:
        """Return name, kind and settings."""
        return {
            **super().describe(),
            "words": list(self.words),
            "regexes": list(self.regexes),
            "field": self.field,
            "ignore_case": self.ignore_case,
            "time_limit_s": self.time_limit_s,
            "action": self.action,
        }


class _Clock:
    """Let regexes search for so many seconds of CPU time, all together."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._began: tuple[float, float] | None = None

    def _left(self, compiled: "regex.Pattern[str]") -> float:
        # CPU time, as the regex package counts: a message must not be blocked because the machine is busy.
        now = time.perf_counter()
        if self._began is None:
            self._began = now, time.process_time()
        began, began_cpu = self._began
        if now - began < _SHORT * self._limit_s:  # asking for CPU time takes as long as many a search
            return self._limit_s
        left = self._limit_s - (time.process_time() - began_cpu)
        if left <= 0:
            raise self._over(compiled)
        return left

    def _over(self, compiled: "regex.Pattern[str]") -> TimeoutError:
        return TimeoutError(f"regex {compiled.pattern!r} ran away: the limit for a message is {self._limit_s:g} s")

    def search(self, compiled: "regex.Pattern[str]", text: str) -> bool:
        """Tell whether a regex is found; raise TimeoutError."""
        try:
            return compiled.search(text, timeout=self._left(compiled)) is not None
        except TimeoutError:
            raise self._over(compiled) from None

    def sub(self, compiled: "regex.Pattern[str]", text: str) -> str:
        """Mask what a regex finds; raise TimeoutError."""
        try:
            return str(compiled.sub(lambda match: MASK if match[0] else "", text, timeout=self._left(compiled)))
        except TimeoutError:
            raise self._over(compiled) from None


def _listed(what: str, values: object, rule: str) -> tuple[str, ...]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise RuleError(f"{what}={values!r} is no list: write [{values!r}]", rule=rule)
    return tuple(values)


def _compiled(text: object, flags: int, rule: str) -> "regex.Pattern[str]":
    if not isinstance(text, str):
        raise RuleError(f"regex {text!r} is no str: pass its text", rule=rule)
    try:
        return regex.compile(text, flags)
    except (regex.error, ValueError, OverflowError, RecursionError) as error:
        raise RuleError(f"regex {text!r} does not compile: {error}", rule=rule) from error
