"""Rules in the syntax of the command line: `black-list:1-2,3-*`, `max-length:500`, `sender-ban:3:pattern:a`."""

import csv
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from ray_messaging.addressing.channels import AgentId, check_id
from ray_messaging.errors import ConfigError, InvalidAddress, RuleError
from ray_messaging.interception.rules import (
    AllowGraph,
    BlackList,
    EdgeBan,
    MaxLength,
    Pattern,
    RateLimit,
    RoundQuota,
    Rule,
    Sample,
    SenderBan,
)
from ray_messaging.interception.rules.pairs import Pair

ANY = "*"
ARROW = "->"
COLUMNS = 2
HEADERS = {("from", "to"), ("from_id", "to_id"), ("src", "dst"), ("sender", "receiver"), ("source", "target")}


class Argument(NamedTuple):
    """The text after a rule's name. If `files`, it may name a file, which is read."""

    text: str
    files: bool = True


def parse_rules(specs: Sequence[str]) -> list[Rule]:
    """Build rules in the given order; raise ConfigError, which lists the known rules, if one is not valid."""
    rules: list[Rule] = []
    for spec in specs:
        rule = _parse(spec)
        _rename(rule, rules)
        rules.append(rule)
    return rules


def parse_rule(spec: str) -> Rule:
    """Build one rule for a user on another machine, so it must not name files.

    Raises ConfigError if it is not valid.
    """
    return _parse(spec, files=False)


def _parse(spec: str, *, files: bool = True) -> Rule:
    kind, _, argument = spec.partition(":")
    known = KNOWN.get(kind.strip().lower().replace("_", "-"))
    if known is None:
        near = get_close_matches(kind.strip().lower(), KNOWN, 1)
        meant = f"did you mean {KNOWN[near[0]].example}? The" if near else "the"
        raise ConfigError(
            f"unknown rule {kind!r} in {spec!r}: {meant} rules here are {', '.join(KNOWN)}, written as "
            f"{KNOWN['max-length'].example}",
            value=spec,
        )
    if not argument.strip():
        raise ConfigError(f"the rule {spec!r} says no more than its name: write {known.example}", value=spec)
    try:
        return known.make(Argument(argument.strip(), files))
    except (InvalidAddress, RuleError) as error:
        raise ConfigError(f"cannot use the rule {spec!r}: {error}", value=spec) from error


def _rename(rule: Rule, others: Sequence[Rule]) -> None:
    """Make a rule's name unique: receipts and the account identify rules by name."""
    name, number = rule.name, 1
    while any(rule.name == other.name for other in others):
        number += 1
        rule.name = f"{name}_{number}"


def _black_list(argument: Argument) -> Rule:
    return BlackList(_pairs("black-list", argument))


def _allow_graph(argument: Argument) -> Rule:
    edges = _pairs("allow-graph", argument)
    if any(None in edge for edge in edges):
        raise ConfigError(f"allow-graph:{argument.text}: an edge has two agents, so {ANY} is invalid: name them")
    return AllowGraph(edges)


def _by_settings(
    make: Callable[..., Rule], kind: str, known: Mapping[str, Callable[[str], Any]], bare: str | None = None
) -> Callable[[Argument], Rule]:
    """Return the builder of a rule that has settings only. `known` and `bare` are the arguments of `_settings`."""
    return lambda argument: make(**_settings(kind, argument.text, known, bare))


def _pattern(argument: Argument) -> Rule:
    path = Path(argument.text)
    if argument.files and (path.suffix.lower() == ".txt" or _is_file(path)):
        return Pattern([word.strip() for _, word in _lines("pattern", path) if word.strip()])
    return Pattern([word.strip() for word in argument.text.split("|") if word.strip()])


def _ban(make: Callable[[Rule, int], Rule], kind: str) -> Callable[[Argument], Rule]:
    def build(argument: Argument) -> Rule:
        after, _, check = argument.text.partition(":")
        if not check.strip():
            raise ConfigError(
                f"{kind}:{argument.text}: name the rule that finds violations, as in {kind}:3:max-length:500"
            )
        return make(
            _parse(check.strip(), files=argument.files), _settings(kind, after, {"after": int}, bare="after")["after"]
        )

    return build


def _number(kind: str, text: str, number: Callable[[str], Any]) -> Any:  # noqa: ANN401 - an int or a float
    try:
        return number(text.strip())
    except ValueError as error:
        expected = "a whole number" if number is int else "a number"
        raise ConfigError(
            f"{kind}: {text.strip()!r} is no number: write {expected}, as in {KNOWN[kind].example}"
        ) from error


def _settings(
    kind: str, text: str, known: Mapping[str, Callable[[str], Any]], bare: str | None = None
) -> dict[str, Any]:
    """Parse `key=value,key=value`. `bare` is a required key that may be left out before the first value."""
    settings: dict[str, Any] = {}
    for place, part in enumerate(filter(str.strip, text.split(","))):
        key, equals, value = part.partition("=")
        key = key.strip().replace("-", "_")
        if bare is not None and place == 0 and not equals:
            key, value = bare, part
        if key not in known:
            raise ConfigError(f"{kind}: cannot read {part.strip()!r}: write {KNOWN[kind].example}")
        if key in settings:
            raise ConfigError(f"{kind}: {key} is there twice: write {KNOWN[kind].example}")
        settings[key] = _number(kind, value, known[key])
    if bare is not None and bare not in settings:
        raise ConfigError(f"{kind}: {bare} is missing: write {KNOWN[kind].example}")
    return settings


def _pairs(kind: str, argument: Argument) -> list[Pair]:
    path = Path(argument.text)
    if argument.files and (path.suffix.lower() == ".csv" or _is_file(path)):
        return _pairs_of_file(kind, path)
    return [_pair(pair.strip(), kind) for pair in argument.text.split(",") if pair.strip()]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a long list of words is no valid file name
        return False


def _pair(text: str, kind: str) -> Pair:
    sides = text.split(ARROW if ARROW in text else "-")
    if len(sides) != COLUMNS or not all(side.strip() for side in sides):
        raise ConfigError(
            f"{kind}: cannot read {text!r} as a pair of agents: write 1-2, 1-* or *-2; where ids hold a -, write "
            f"A{ARROW}B, which a shell wants in quotes"
        )
    return _side(sides[0]), _side(sides[1])


def _side(text: str) -> AgentId | None:
    return None if text.strip() == ANY else check_id(text.strip())


def _lines(kind: str, path: Path) -> list[tuple[int, str]]:
    """Read the numbered lines of a text file; raise ConfigError if it cannot be read."""
    try:
        return list(enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        expected = "a text file, a word on each line" if kind == "pattern" else "a CSV file of two columns"
        raise ConfigError(f"{kind}: cannot read {str(path)!r} ({reason}): give {expected}") from error


def _pairs_of_file(kind: str, path: Path) -> list[Pair]:
    """Read a CSV file of two columns; a header such as `from,to` is skipped.

    Raises: ConfigError with file and line if a line is not valid.
    """
    try:
        cut = [(number, next(csv.reader([line]), [])) for number, line in _lines(kind, path)]
    except csv.Error as error:
        raise ConfigError(f"{kind}: cannot read {str(path)!r} ({error}): give a CSV file of two columns") from error
    rows = [(number, row) for number, row in cut if any(map(str.strip, row))]
    pairs: list[Pair] = []
    for number, row in rows:
        cells = tuple(cell.strip() for cell in row)
        if number == 1 and tuple(map(str.lower, cells)) in HEADERS:
            continue
        if len(cells) != COLUMNS or not all(cells):
            raise ConfigError(f"{path.name}:{number}: expected two ids, or * for any agent, found {','.join(row)!r}")
        try:
            pairs.append((_side(cells[0]), _side(cells[1])))
        except InvalidAddress as error:
            raise ConfigError(f"{path.name}:{number}: {error}") from error
    return pairs


class Known(NamedTuple):
    """The function that builds a rule from its argument, an example of it, and the form in which it names a file."""

    make: Callable[[Argument], Rule]
    example: str
    of_file: str = ""


KNOWN = {
    "black-list": Known(_black_list, "black-list:1-2,3-*,*-4", "black-list:FILE.csv"),
    "allow-graph": Known(_allow_graph, "allow-graph:1-2,2-1", "allow-graph:FILE.csv"),
    "sender-ban": Known(
        _ban(SenderBan, "sender-ban"),
        "sender-ban:3:max-length:500 (after 3 violations of the other rule) or sender-ban:after=3:max-length:500",
    ),
    "edge-ban": Known(_ban(EdgeBan, "edge-ban"), "edge-ban:3:max-length:500 (the same for a pair)"),
    "rate-limit": Known(
        _by_settings(RateLimit, "rate-limit", {"per_second": float, "per_round": int}),
        "rate-limit:per_second=5,per_round=100",
    ),
    "round-quota": Known(
        _by_settings(RoundQuota, "round-quota", {"contacts": int, "blocked": int}),
        "round-quota:contacts=10,blocked=5",
    ),
    "pattern": Known(_pattern, "pattern:word|some words", "pattern:FILE.txt"),
    "sample": Known(
        _by_settings(Sample, "sample", {"share": float, "seed": int}, "share"),
        "sample:0.1 (a share to block) or sample:share=0.1,seed=7",
    ),
    "max-length": Known(
        _by_settings(MaxLength, "max-length", {"limit_bytes": int}, "limit_bytes"),
        "max-length:500 (bytes of JSON) or max-length:limit_bytes=500",
    ),
}
