"""Search for words in text, on word boundaries in any script."""

from collections.abc import Iterable
from typing import NamedTuple

import regex

from ray_messaging.errors import RuleError
from ray_messaging.interception.rules.support.texts import LETTER, TOKEN, plain

_LETTER = regex.compile(LETTER)
_NO_LETTERS = {code: " " for code in range(128) if not (chr(code).isalnum())}
_LOWER_LETTERS = bytes(code if chr(code).isalnum() else 32 for code in range(128)).lower() + bytes(range(128, 256))
_ANY_LETTERS = bytes(code if chr(code).isalnum() else 32 for code in range(128)) + bytes(range(128, 256))
# JSON's escapes of two characters. The backslash comes first: a character after an escaped one is no escape.
_ESCAPES = tuple((b"\\" + escape, b" ") for escape in (b"\\", b"n", b'"', b"t", b"r", b"/", b"b", b"f"))


class Word(NamedTuple):
    """A word as given, and as it is searched for."""

    given: str
    plain: str


class Words:
    """A set of words and phrases to find in plain text (see `texts.plain`).

    A word is found by its longest run of letters, which is looked up among those of the text. A word without letters
    (of signs, or of a script without spaces) is found by its longest part.
    """

    def __init__(self, words: Iterable[str], *, fold: bool, rule: str) -> None:
        self._fold = fold
        self._by_token: dict[str, list[Word]] = {}
        self._by_part: list[tuple[str, Word]] = []
        self._compiled: dict[tuple[Word, bool], regex.Pattern[str]] = {}
        for given in dict.fromkeys(words):
            self._add(given, rule)
        self._tokens = {token.encode() for token in self._by_token if token.isascii()}
        self._parts = [part.encode() for part, _ in self._by_part if part.isascii()]
        self._letters = _LOWER_LETTERS if fold else _ANY_LETTERS

    def _add(self, given: str, rule: str) -> None:
        text = plain(given, fold=self._fold) if isinstance(given, str) else ""
        if not text.strip():
            raise RuleError(f"{given!r} is no word: give a str with something to see in it", rule=rule)
        word = Word(given, text)
        tokens = TOKEN.findall(text)
        if tokens:
            self._by_token.setdefault(max(tokens, key=len), []).append(word)
        else:
            self._by_part.append((max(text.split(), key=len), word))

    def may_hit(self, line: bytes) -> bool:
        """Return whether a JSON text may hold a word: never False if it does, rarely True if it does not."""
        if not line.isascii():
            return True
        if b"\\" in line:
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
        """Return the words in a plain text."""
        tokens = text.translate(_NO_LETTERS).split() if text.isascii() else TOKEN.findall(text)
        maybe = [word for token in dict.fromkeys(tokens) for word in self._by_token.get(token, ())]
        maybe += [word for part, word in self._by_part if part in text]
        return [word for word in maybe if self.pattern(word).search(text)]

    def pattern(self, word: Word, *, any_case: bool = False) -> "regex.Pattern[str]":
        """Return the regex for a word in plain text; with `any_case`, in text that is not folded."""
        found = self._compiled.get((word, any_case))
        if found is None:
            body = r"\s+".join(map(regex.escape, word.plain.split()))
            before = f"(?<!{LETTER})" if _LETTER.match(word.plain.strip()[0]) else ""
            after = f"(?!{LETTER})" if _LETTER.match(word.plain.strip()[-1]) else ""
            flags = regex.IGNORECASE | regex.FULLCASE if any_case else 0
            found = self._compiled[word, any_case] = regex.compile(before + body + after, flags)
        return found
