"""A rule that searches payloads for words and regexes."""

import re
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec
import regex

from ray_messaging.compat.msg import ROLES, names_msg
from ray_messaging.errors import RuleError
from ray_messaging.interception.rules.checks import check_choice, check_positive
from ray_messaging.interception.rules.rule import ALLOW, Rule, Verdict, block, label, rewrite
from ray_messaging.model.batch import Batch

# Scripts that write no spaces between words: Thai, Lao, Myanmar, Khmer, Han, Hiragana, Katakana. A word of these
# scripts may be found inside of longer text.
_UNSPACED = (
    r"\u0e00-\u0eff\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f\u1780-\u17ff\u19e0-\u19ff\u2e80-\u2fdf\u3005\u3007"
    r"\u3021-\u3029\u3038-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U0001b000-\U0001b16f"
    r"\U00020000-\U0003ffff"
)
# A regex for one letter. For the regex package, a combining mark, such as an accent, is a letter, too. The module `re`
# splits words at such a mark.
LETTER = rf"[^\W_{_UNSPACED}]"
TOKEN = re.compile(rf"{LETTER}+")
# Invisible characters (Unicode's default ignorable code points), and combining marks that strike through or pile up on
# letters of any script. Marks of a single script stay, because they distinguish words of the script.
_HIDDEN = re.compile(
    r"[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    r"\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    r"\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+"
)
_UUID4 = re.compile(r"[0-9a-f]{12}4[0-9a-f]{3}[89ab][0-9a-f]{15}")
_TIME = re.compile(r"[0-9]{4}(-[0-9]{2}){2} [0-9]{2}(:[0-9]{2}){2}")
# A field of a Msg is not searched if its value passes the test here: it has the form that Msg itself gives it.
_OWN: dict[str, Callable[[Any], object]] = {
    "__module__": lambda _: True,
    "__name__": lambda _: True,
    "role": ROLES.__contains__,
    "id": lambda value: isinstance(value, str) and _UUID4.fullmatch(value),
    "timestamp": lambda value: isinstance(value, str) and _TIME.fullmatch(value),
}
_decode = msgspec.json.Decoder().decode

MASK = "***"
# After this many messages of a batch have exceeded the time limit, the rule fails on the batch's later messages without
# a search, because other batches wait.
_RUNAWAYS = 20
_SHORT = 0.1  # CPU time is measured only once the elapsed time exceeds this fraction of the time limit
_LETTER = regex.compile(LETTER)
_NO_LETTERS = {code: " " for code in range(128) if not (chr(code).isalnum())}
_LOWER_LETTERS = bytes(code if chr(code).isalnum() else 32 for code in range(128)).lower() + bytes(range(128, 256))
_ANY_LETTERS = bytes(code if chr(code).isalnum() else 32 for code in range(128)) + bytes(range(128, 256))
# JSON's escapes of two characters. The escaped backslash comes first, because the character after it may look like an
# escape.
_ESCAPES = tuple((b"\\" + escape, b" ") for escape in (b"\\", b"n", b'"', b"t", b"r", b"/", b"b", b"f"))


def plain(text: str, *, fold: bool) -> str:
    """Return text in the Unicode normal form NFKC, without the invisible characters and marks in `_HIDDEN`.

    With `fold`, the text is also case-folded.
    """
    if text.isascii():
        return text.lower() if fold else text
    text = _visible(text)
    # Case folding may separate a letter from its combining mark again, as in the Turkish dotted I.
    return _visible(text.casefold()) if fold else text


def _visible(text: str) -> str:
    return _HIDDEN.sub("", unicodedata.normalize("NFKC", text))


def decoded(line: bytes) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return a decoded payload. A foreign client's payload that is not JSON is returned as one str."""
    try:
        return _decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return line.decode(errors="replace")


def visible_parts(payload: Any) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return the parts of a payload that are searched.

    If the payload is the dict of a Msg (AgentScope's message class), the fields with the Msg's class, role, id and time
    are left out. A field is left out only if its value has the form that a Msg gives it. Any other payload is returned
    whole.
    """
    if not names_msg(payload):
        return payload
    return {key: value for key, value in payload.items() if key not in _OWN or not _OWN[key](value)}


def strings(value: Any) -> list[str]:  # noqa: ANN401 - JSON of any shape
    """Return all strings in a JSON value, except keys."""
    found: list[str] = []
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, str):
            found.append(item)
        elif isinstance(item, dict):
            left.extend(item.values())
        elif isinstance(item, list):
            left.extend(item)
    return found


def replaced(value: Any, change: Callable[[str], str]) -> Any:  # noqa: ANN401 - JSON of any shape
    """Return a copy of a JSON value in which `change` was applied to all strings, except keys."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: replaced(item, change) for key, item in value.items()}
    return [replaced(item, change) for item in value] if isinstance(value, list) else value


class Word(NamedTuple):
    """A word as it was passed to the rule, and the same word in the form that is searched for (by function `plain`)."""

    given: str
    plain: str


class Words:
    """A set of words and phrases to find in plain text (see `plain`).

    To find a word, its longest sequence of letters is looked up among the text's sequences of letters. If a word has no
    letters, or its script has no spaces between words, its longest part between spaces is looked up instead.
    """

    def __init__(self, words: Iterable[str], *, fold: bool, rule: str) -> None:
        self._fold = fold
        self._by_token: dict[str, list[Word]] = {}
        self._by_part: list[tuple[str, Word]] = []
        for given in dict.fromkeys(words):
            self._add(given, rule)
        self._tokens = {token.encode() for token in self._by_token if token.isascii()}
        self._parts = [part.encode() for part, _ in self._by_part if part.isascii()]
        self._letters = _LOWER_LETTERS if fold else _ANY_LETTERS

    def _add(self, given: str, rule: str) -> None:
        text = plain(given, fold=self._fold) if isinstance(given, str) else ""
        if not text.strip():
            raise RuleError(f"{given!r} is not a word: pass a str with at least one visible character", rule=rule)
        word = Word(given, text)
        tokens = TOKEN.findall(text)
        if tokens:
            self._by_token.setdefault(max(tokens, key=len), []).append(word)
        else:
            self._by_part.append((max(text.split(), key=len), word))

    def may_hit(self, line: bytes) -> bool:
        """Return whether a JSON text may contain a word. False means that the text certainly contains no word."""
        if not line.isascii():
            return True
        if b"\\" in line:
            # `decoded` also returns a str if the payload is not JSON. A backslash then begins no escape.
            if isinstance(decoded(line), str):
                return True
            for escape, space in _ESCAPES:
                line = line.replace(escape, space)
                if b"\\" not in line:
                    break
            if self._parts or b"\\" in line:
                return True
        if not self._tokens.isdisjoint(line.translate(self._letters).split()):
            return True
        return bool(self._parts) and any(part in line for part in self._parts)

    def hits(self, text: str) -> list[Word]:
        """Return the words and phrases that occur in a text, which must have the form that `plain` gives."""
        tokens = text.translate(_NO_LETTERS).split() if text.isascii() else TOKEN.findall(text)
        maybe = [word for token in dict.fromkeys(tokens) for word in self._by_token.get(token, ())]
        maybe += [word for part, word in self._by_part if part in text]
        return [word for word in maybe if _finder(word.plain).search(text)]


@lru_cache(10_000)
def _finder(word: str, *, any_case: bool = False) -> "regex.Pattern[str]":
    """Return the regex that finds a word in a text. Both must have the form that `plain` gives.

    With `any_case`, the text need not be case-folded.
    """
    body = r"\s+".join(map(regex.escape, word.split()))
    before = f"(?<!{LETTER})" if _LETTER.match(word.strip()[0]) else ""
    after = f"(?!{LETTER})" if _LETTER.match(word.strip()[-1]) else ""
    return regex.compile(before + body + after, regex.IGNORECASE | regex.FULLCASE if any_case else 0)


class Pattern(Rule):
    """Block, label or mask messages that hold a word or match a regex.

    Messages from the user (from_id None) are checked, too. All strings of the payload are searched, but not its keys,
    and not the class, role, id and time of a Msg. Text is compared in Unicode's form NFKC, without invisible characters
    and without marks that strike through letters or pile up on them. Look-alikes of other scripts (a Cyrillic a) are
    different letters.

    Args:
        words: words and phrases, which are found only as whole words. The words of a phrase may have any white space
            between them.
        regexes: patterns of the `regex` package, searched in each string.
        field: the only field of the payload to search. None: all fields.
        ignore_case: whether "A" and "a" count as equal.
        time_limit_s: how much CPU time, in seconds, all regexes together may use on one message. If they take longer,
            the rule fails on the message, which is then blocked unless `on_error` is "allow".
        action: "block"; "label", which adds the rule's name as a label; or "mask", which replaces each hit by ***, but
            blocks a message with a hit if the payload is not a JSON object.
        name: the rule's name.

    Raises: RuleError if an argument is not valid, or a regex does not compile.
    """

    needs_payload = True
    judges_broadcasts = "message"
    _described = ("words", "regexes", "field", "ignore_case", "time_limit_s", "action")

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
            raise RuleError("the pattern has nothing to look for: pass words, regexes, or both", rule=name)
        if not isinstance(field, str | None):
            raise RuleError(f"field={field!r} is not the name of a field: pass a str", rule=name)
        self.field = field
        self.ignore_case = ignore_case
        self.time_limit_s = check_positive("time_limit_s", time_limit_s, name, below=1e6)
        self.action = check_choice("action", action, ("block", "label", "mask"), name)
        self._words = Words(self.words, fold=ignore_case, rule=name)
        self._regexes = [_compiled(text, regex.IGNORECASE if ignore_case else 0, name) for text in self.regexes]

    def check_batch(self, batch: Batch, exp_id: str) -> Mapping[int, Verdict]:  # noqa: ARG002 - every rule gets it
        """Return the verdicts on rows with hits. A payload that several messages share is searched once."""
        assert batch.lines is not None
        lines = batch.lines.list
        may_hit = self._words.may_hit
        suspects = range(len(lines)) if self._regexes else [at for at, line in enumerate(lines) if may_hit(line)]
        found: dict[int, Verdict] = {}
        ran_away = 0
        for line in suspects:
            try:
                if ran_away >= _RUNAWAYS:
                    raise TimeoutError(  # noqa: TRY301 - counted like the other failures
                        f"this message was not searched, because regexes took too long on {_RUNAWAYS} other messages "
                        "of the batch"
                    )
                verdict = self._judge(lines[line])
            except TimeoutError as error:
                ran_away += 1
                verdict = self.count_failure(error)
            except Exception as error:  # noqa: BLE001 - one odd payload must not fail the whole batch
                verdict = self.count_failure(error)
            if verdict is not ALLOW:
                found[line] = verdict
        if batch.lines.index is None or not found:
            return found
        return {row: found[line] for row, line in enumerate(batch.lines.index.tolist()) if line in found}

    def _judge(self, line: bytes) -> Verdict:
        payload = decoded(line)
        field = self.field if isinstance(payload, dict) else None
        value = visible_parts(payload) if field is None else payload.get(field)
        clock = _Clock(self.time_limit_s)
        found = next((hit for text in strings(value) if (hit := self._found(text, clock))), None)
        if found is None:
            return ALLOW
        if self.action == "label":
            return label(self.name)
        if self.action == "mask" and isinstance(payload, dict):
            masked = replaced(value, lambda text: self._masked(text, clock))
            return rewrite({**payload, **masked} if field is None else {**payload, field: masked})
        return block(f"the payload holds {found}")

    def _found(self, text: str, clock: "_Clock") -> str | None:
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
            masked = _finder(word.plain, any_case=self.ignore_case).sub(MASK, masked)
        if self._words.hits(plain(masked, fold=self.ignore_case)):
            # A word occurs in the case-folded text, but its place in `masked` is not known. So all the text is masked.
            return MASK
        for compiled in self._regexes:
            masked = clock.sub(compiled, masked)
        return text if masked == shown else masked


class _Clock:
    """The CPU time that the regexes may still use on one message, in seconds."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._began: tuple[float, float] | None = None

    def _left(self) -> float:
        # The limit is on CPU time, as in the regex package. A limit on elapsed time would block messages on a busy
        # machine.
        now = time.perf_counter()
        if self._began is None:
            self._began = now, time.process_time()
        began, began_cpu = self._began
        # At the beginning the CPU time is not read, because reading it takes as long as a search.
        if now - began < _SHORT * self._limit_s:
            return self._limit_s
        left = self._limit_s - (time.process_time() - began_cpu)
        if left <= 0:
            raise TimeoutError
        return left

    def search(self, compiled: "regex.Pattern[str]", text: str) -> bool:
        """Return whether a regex is found in a text; raise TimeoutError if the time limit is exceeded."""
        return self._in_time(compiled, compiled.search, text) is not None

    def sub(self, compiled: "regex.Pattern[str]", text: str) -> str:
        """Replace the hits of a regex by a mask; raise TimeoutError if the time limit is exceeded."""
        return str(self._in_time(compiled, compiled.sub, lambda match: MASK if match[0] else "", text))

    def _in_time(self, compiled: "regex.Pattern[str]", call: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401
        try:
            return call(*arguments, timeout=self._left())
        except TimeoutError:
            raise TimeoutError(
                f"regex {compiled.pattern!r} took too long: the limit for a message is {self._limit_s:g} s"
            ) from None


def _listed(name: str, values: object, rule: str) -> tuple[str, ...]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise RuleError(f"{name}={values!r} is not a list: write [{values!r}]", rule=rule)
    return tuple(values)


def _compiled(text: object, flags: int, rule: str) -> "regex.Pattern[str]":
    if not isinstance(text, str):
        raise RuleError(f"a regex must be a str, not {text!r}: pass its text", rule=rule)
    try:
        return regex.compile(text, flags)
    except (regex.error, ValueError, OverflowError, RecursionError) as error:
        raise RuleError(f"regex {text!r} does not compile: {error}", rule=rule) from error
