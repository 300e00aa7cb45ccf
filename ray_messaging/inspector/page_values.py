"""Values for the pages: aggregates and shortened texts, whose size does not grow with the run."""

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from ray_messaging.common.texts import steps_done

TEXT_WIDTH = 2_000  # at most this many characters of a payload are shown
NAME_WIDTH = 60
_MOST_VALUES, _VALUE_WIDTH = 40, 200
_PICTURES = 0x2400  # from here on, Unicode has pictures of the control characters
_DELETE = 0x7F
_CONTROLS = 0x20
_ODD = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_SHOWN_ELSEWHERE = {"name", "kind", "failures", "on_error", "last_error", "last_failed_at", "errors"}


@dataclass(frozen=True, slots=True)
class TrafficBins:
    """The numbers of messages over a period, in intervals called bins: all messages by fate, blocked ones by rule.

    If `in_steps` is True, a bin is a range of steps, and `start` is the first step. If not, a bin is a period of time,
    and `start` is the beginning of the first bin in unix seconds. `width` is the number of steps or seconds in a bin.
    `per_second` is the rate of all messages (None: unknown). `share` is the share of the rows that was counted (1.0:
    all rows). Below 1.0, the numbers are estimates for all rows.
    """

    start: float
    width: float
    in_steps: bool
    fates: dict[str, list[int]]
    blocked: dict[str, list[int]]
    per_second: float | None
    rows: int  # the number of rows in the whole log
    share: float = 1.0

    def total(self, fate: str) -> int:
        """Return the number of messages with one fate."""
        return sum(self.fates.get(fate, ()))

    @property
    def messages(self) -> int:
        """Return the number of all messages of the period."""
        return sum(map(sum, self.fates.values()))


@dataclass(frozen=True, slots=True)
class BusiestAgents:
    """The agents that send the most messages (`agents`), and the pairs of agents with the most messages (`pairs`).

    Each agent comes with the number of messages that it sent. Each pair comes with the number of messages from the
    first agent to the second. `edges` has all pairs of the busiest `agents`, with these numbers. `writers` is the
    number of all agents that sent messages. `share` is the share of the log's rows that was counted. `values` has the
    last value that `collect` recorded of each of the `agents`, and `measure` is the name of that value ("": nothing was
    recorded).
    """

    agents: list[tuple[str, int]]
    writers: int
    edges: list[tuple[str, str, int]]
    pairs: list[tuple[str, str, int]]
    share: float = 1.0
    measure: str = ""
    values: dict[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Series:
    """Values by step for a chart, such as those that a run has recorded with `collect`.

    `lines` has, by name, a list with a value for each of the `steps` (None: the step has no value).
    """

    steps: list[int]
    lines: dict[str, list[float | None]]


@dataclass(frozen=True, slots=True)
class SocietyInStep:
    """The agents in one step of a run, each with one value that the run has collected of it.

    `steps` are the steps in which the run collected values, and `measures` the names of the values. `agents` are all
    `total` agents, or at most 10,000 of them at regular intervals. `places` has the position of each of the `agents`:
    the values x and y that the run collected, or, if it collected none (`lattice`), a cell of a lattice. `bounds` are
    the least and the greatest x, then the least and the greatest y, over the whole run. Each of the `edges` has the
    indices in `agents` of a sender and a recipient, and the number of messages between them in the step. Messages are
    counted only in a small society (`linked`). `scale` is the least and the greatest value over the whole run, or a
    sorted list of different values if they are not numbers.
    """

    steps: list[int]
    measures: list[str]
    step: int
    measure: str
    agents: list[str]
    values: list[float | str]
    places: list[tuple[float, float]]
    bounds: tuple[float, float, float, float]
    lattice: bool
    linked: bool
    edges: list[tuple[int, int, int]]
    scale: tuple[float, float] | list[str]
    total: int


@dataclass(frozen=True, slots=True)
class Differences:
    """The messages in which two runs differ.

    `first` describes the first such message; `lines` counts these messages by step.
    """

    first: str
    lines: Series


@dataclass(frozen=True, slots=True)
class CallSums:
    """The sums over all calls through `me.remember` of one agent, or of one language model.

    `name` is that of the agent or model. `cost` is "" if there are no prices.
    """

    name: str
    calls: int
    tokens: int
    cost: str
    seconds: float


@dataclass(frozen=True, slots=True)
class SlowAgent:
    """The agent whose calls through `me.remember` took the longest in a step.

    The calls took `seconds` in sum, which is `longer` seconds more than the calls of the second slowest agent. `hears`
    is how many agents the slow agent wrote to in the step, and `named` has some of these agents.
    """

    step: int
    agent: str
    seconds: float
    longer: float
    hears: int
    named: list[str]


@dataclass(frozen=True, slots=True)
class CallFacts:
    """The calls through `me.remember` of the committed steps: their sums, by step, by agent and by model.

    `made` counts the calls that were made, and `saved` the calls whose answers came from a store. `by_step` has, for
    each step, the cost of its calls; if there are no prices, their tokens; if there are no tokens, their seconds.
    `measure` says which of the three `by_step` has. `agents` has the agents whose calls took the longest. `slowest`
    has, for some steps, the agent whose calls took the longest in the step.
    """

    made: int
    saved: int
    saved_tokens: int
    tokens: int
    cost: str
    measure: str
    by_step: Series
    agents: list[CallSums]
    models: list[CallSums]
    slowest: list[SlowAgent]


@dataclass(frozen=True, slots=True)
class CallAtWork:
    """An agent whose calls through `me.remember` are under way now.

    `calls` is the number of these calls, and `waiting` the number of those that wait for a limit. `hears` is how many
    agents wait for this agent (None: all), and `named` has some of these agents.
    """

    agent: str
    step: int
    calls: int
    waiting: int
    seconds: float
    hears: int | None
    named: list[str]


@dataclass(frozen=True, slots=True)
class CallsAtWork:
    """The calls through `me.remember` that are under way now: how many run, and how many wait for a limit.

    `agents` has some of the agents that make these calls.
    """

    in_flight: int
    waiting: int
    agents: list[CallAtWork]


@dataclass(frozen=True, slots=True)
class StepFacts:
    """The state of the steps.

    `now` is the first step that some group has not committed. `target` is the step after which the steps pause (None:
    they do not pause). `waiting` has the groups for which other groups wait, each with the step that it must commit.
    `resting` is True if no step is open.
    """

    now: int
    target: int | None
    waiting: dict[str, int]
    stragglers: list[str]
    resting: bool

    def __str__(self) -> str:
        now = steps_done(self.now) if self.resting else f"step {self.now:,} is open"
        if self.target is None:
            return now
        return f"{now}; {'paused' if self.resting else 'pauses'} after step {self.target:,}"


@dataclass(frozen=True, slots=True)
class State:
    """The present state of an experiment: how many messages wait in each mailbox, the steps, and the dead letters."""

    waiting: dict[str, int]
    steps: StepFacts | None
    dead_letters: int


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the log for a page. Names and texts are shortened and printable.

    `size` is the size of the payload in bytes.
    """

    position: int
    message_id: str
    sent_at: float
    from_id: str
    to_id: str
    text: str
    size: int
    fate: str
    text_before: str = ""
    labels: str = ""
    rule: str = ""
    reason: str = ""
    step: int | None = None
    in_reply_to: str = ""
    asks: bool = False
    caused: bool = False  # whether the log knows the causes of the message


@dataclass(frozen=True, slots=True)
class Cause:
    """A message and its causes, made for pages from an `eventlog.reading.causes.Why`."""

    row: Row
    causes: list["Cause"]
    more: int
    answered: bool
    note: str
    calls: list[str]

    def rows(self) -> list[Row]:
        """Return this message, its causes, their causes and so on. Each message comes before its causes."""
        return [self.row, *(row for each in self.causes for row in each.rows())]


@dataclass(frozen=True, slots=True)
class RowQuery:
    """A search for rows, as a person has typed it on a page. A field that is "" matches any value.

    `between` are the two agents of a conversation.
    """

    from_id: str = ""
    to_id: str = ""
    agent: str = ""
    between: tuple[str, str] | None = None
    contains: str = ""
    fate: str = ""
    rule: str = ""
    step: str = ""
    limit: int = 100


@dataclass(frozen=True, slots=True)
class AgentFacts:
    """Facts about an agent: its group, its messages by fate, its neighbours, and its state or last collected values."""

    name: str
    sent: dict[str, int]
    received: dict[str, int]
    writes_to: list[tuple[str, int]]
    hears_from: list[tuple[str, int]]
    rows: Sequence[Row]
    group: str | None = None
    waiting: int | None = None
    state: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RuleFacts:
    """A rule, with its settings and its failures.

    For a rule in a log, `done` says what the rule has done, and when it was changed.
    """

    name: str
    kind: str
    settings: str
    failures: int = 0
    last_error: str = ""
    key: str = ""  # the rule's whole name (`name` may be shortened); "" for a rule in a log
    done: str = ""


@dataclass(frozen=True, slots=True)
class LetterFacts:
    """A dead letter: its mailbox, the reason, the time at which it became a dead letter, and texts of its messages."""

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
    """What a new rule would have done with recent messages: how many it would have blocked or changed.

    `seconds` is the length of the period in which the judged messages were sent. `left_out` counts messages that were
    too long to be judged. `examples` are the first messages that the rule would have blocked, with the reasons.
    """

    rule: str
    judged: int
    blocked: int
    changed: int
    seconds: float
    left_out: int = 0
    examples: list[Row] = field(default_factory=list)


def visible(text: str) -> str:
    """Return a text in which control characters, direction marks and lone surrogates are replaced by visible signs."""
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
    """Return an id or a name as text for a page. None becomes "the user"."""
    return cut("the user" if value is None else str(value), NAME_WIDTH)


def cut(text: object, width: int = TEXT_WIDTH) -> str:
    """Return the beginning of a text, with visible signs in place of control characters; return "" for None."""
    whole = "" if text is None else str(text)
    return visible(whole) if len(whole) <= width else visible(whole[: width - 1]) + "\u2026"


def in_words(state: Mapping[Any, object]) -> dict[str, str]:
    """Return the first values of a state, by key, as texts for a page."""
    first = islice(state.items(), _MOST_VALUES)
    return {name(key): cut(value if isinstance(value, str) else repr(value), _VALUE_WIDTH) for key, value in first}


def spoken(payload: str) -> tuple[str, str]:
    """Return the text in a payload (its `content` or `text`), and the other fields as JSON.

    A payload without such a text is returned whole, with "" for the other fields.
    """
    try:
        found = json.loads(payload)
    except (ValueError, RecursionError):  # the payload was cut, or nests too deeply
        return payload, ""
    key = next(
        (key for key in ("content", "text") if isinstance(found, dict) and isinstance(found.get(key), str)), None
    )
    if key is None:
        return payload, ""
    words = "\n".join(map(visible, found.pop(key).split("\n")))
    return words, visible(json.dumps(found, ensure_ascii=False)) if found else ""


def size(nbytes: int) -> str:
    """Return a number of bytes as text for people."""
    for unit in ("bytes", "KiB", "MiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "bytes" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024  # type: ignore[assignment]
    return f"{nbytes:,.1f} GiB"


def number(value: float | None) -> str:
    """Return a count as text for people; a dash for None, which means unknown."""
    if value is None:
        return "\u2013"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def clock(seconds: float) -> str:
    """Return a time of the log (unix s) as text for people, in UTC."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%d %b %H:%M:%S.%f}"[:-3]
    except (ValueError, OverflowError, OSError):  # a sender's clock may be wrong by any amount
        return f"{seconds:g}"


def settings(description: dict[str, Any]) -> str:
    """Return settings as a text of `name=value`, shortened.

    Settings without a value, and settings that a page shows elsewhere, are left out.
    """
    given = {key: value for key, value in description.items() if value not in (None, "", [], {})}
    shown = (f"{key}={value}" for key, value in given.items() if key not in _SHOWN_ELSEWHERE)
    return cut(", ".join(shown), 300)
