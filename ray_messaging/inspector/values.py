"""Values that the pages show: aggregates and cut texts, small however large the run is."""

import unicodedata
from dataclasses import dataclass, field
from typing import Any, NamedTuple

TEXT_WIDTH = 2_000  # characters of a payload
NAME_WIDTH = 60
_PICTURES = 0x2400  # Unicode's pictures of control characters
_DELETE = 0x7F
_CONTROLS = 0x20
_ODD = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_SHOWN_ELSEWHERE = {"name", "kind", "failures", "on_error", "last_error", "last_failed_at", "errors"}


class Flow(NamedTuple):
    """Messages of a period from one messager to one mailbox."""

    sender: str
    mailbox: str
    messages: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """Messages of a period: over time by fate, blocked ones by rule, and flows between groups.

    `start` is the first bin's time (unix s), `width_s` a bin's length. `shares` says which share of the rows was
    counted, 1.0 for all: the counts are scaled up. `blocked_from` counts the blocked messages of each messager.
    """

    start: float
    width_s: float
    bins: int
    fates: dict[str, list[int]]
    blocked: dict[str, list[int]]
    flows: list[Flow]
    blocked_from: dict[str, int]
    rows: int  # of the whole log
    share: float = 1.0

    @property
    def seconds(self) -> float:
        """Return the length of the period, from its first message on: a run may have begun in it."""
        used = (next((place for place, n in enumerate(counts) if n), self.bins) for counts in self.fates.values())
        return max(1, self.bins - min(used, default=0)) * self.width_s

    def total(self, fate: str) -> int:
        """Return the messages of one fate."""
        return sum(self.fates.get(fate, ()))

    @property
    def messages(self) -> int:
        """Return all messages of the period."""
        return sum(map(sum, self.fates.values()))


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A group: its agents, the messages that wait for it; in steps the last one that it closed."""

    name: str
    agents: int | None = None
    waiting: int | None = None
    closed: int | None = None


@dataclass(frozen=True, slots=True)
class StepFacts:
    """The steps: the first one that is not sealed, the pause, and the groups that hold up the others."""

    now: int
    latest: int
    target: int | None
    wait_for: str
    waiting: dict[str, int]
    stragglers: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class State:
    """State of an experiment now."""

    groups: list[GroupFacts]
    steps: StepFacts | None = None
    judged: int | None = None
    blocked: int | None = None
    dead_letters: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the log, for people: names and texts are cut and printable, `size` is the payload's in bytes."""

    position: int
    message_id: str
    sent_at: float
    from_id: str
    to_id: str
    subtopic: str
    text: str
    size: int
    fate: str
    text_before: str = ""
    labels: str = ""
    rule: str = ""
    reason: str = ""
    step: int | None = None


@dataclass(frozen=True, slots=True)
class RowQuery:
    """A search of rows, as a reader writes it: empty texts ask for nothing.

    `between` are the two agents of a conversation.
    """

    from_id: str = ""
    to_id: str = ""
    agent: str = ""
    between: tuple[str, str] | None = None
    contains: str = ""
    fate: str = ""
    rule: str = ""
    subtopic: str = ""
    step: str = ""
    message_id: str = ""
    limit: int = 100


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """An agent: its group, its messages by fate, and its most frequent neighbours."""

    name: str
    group: str | None
    waiting: int | None
    sent: dict[str, int]
    received: dict[str, int]
    writes_to: list[tuple[str, int]]
    hears_from: list[tuple[str, int]]
    rows: list[Row]


@dataclass(frozen=True, slots=True)
class RuleFacts:
    """A rule: its settings, the messages that it has blocked in the period, and its failures."""

    name: str
    kind: str
    settings: str
    failures: int = 0
    last_error: str = ""
    key: str = ""  # its whole name


@dataclass(frozen=True, slots=True)
class LetterFacts:
    """A dead letter: where it lay, why, since when, and its first texts."""

    id: str
    mailbox: str
    reason: str
    at: float
    messages: int
    size: int
    readable: bool
    texts: list[str]


@dataclass(frozen=True, slots=True)
class Preview:
    """Messages that a rule would have blocked of those that passed lately.

    `seconds` is the time in which the judged messages were sent. `left_out` counts those that were too long to be
    judged. `examples` are the first ones that it would have blocked, with its reasons.
    """

    rule: str
    judged: int
    blocked: int
    changed: int
    seconds: float
    left_out: int = 0
    examples: list[Row] = field(default_factory=list)


def visible(text: str) -> str:
    """Return a text in which control characters, marks of direction and lone surrogates are visible signs."""
    if text.isprintable():
        return text
    return "".join(map(_sign, text))


def _sign(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) not in _ODD:
        return character
    code = ord(character)
    if code < _CONTROLS:
        return chr(_PICTURES + code)
    return "\u2421" if code == _DELETE else f"\u27e8U+{code:04X}\u27e9"


def name(value: object) -> str:
    """Return an id or a name for a page; None is the user."""
    return cut("the user" if value is None else str(value), NAME_WIDTH)


def cut(text: object, width: int = TEXT_WIDTH) -> str:
    """Return the visible beginning of a text."""
    whole = "" if text is None else str(text)
    return visible(whole) if len(whole) <= width else visible(whole[: width - 1]) + "\u2026"


def size(nbytes: int) -> str:
    """Return a size for people."""
    for unit in ("bytes", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024  # type: ignore[assignment]
    return f"{nbytes:,.1f} GiB"


def number(value: float | None) -> str:
    """Return a count for people; an unknown one is a dash."""
    if value is None:
        return "\u2013"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def settings(description: dict[str, Any]) -> str:
    """Return a rule's settings as `name=value`, cut."""
    shown = (f"{key}={value}" for key, value in description.items() if key not in _SHOWN_ELSEWHERE)
    return cut(", ".join(shown), 300)
