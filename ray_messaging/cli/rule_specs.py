"""Rules in the syntax of the command line: `black-list:1-2,3-*`, `max-length:500`, `sender-ban:3:pattern:a`."""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
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


def parse_rules(specs: Sequence[str]) -> list[Rule]:
    """Build rules in the given order; raise ConfigError if the text of a rule is not valid."""
    rules: list[Rule] = []
    for spec in specs:
        rule = parse_rule(spec)
        name, number = rule.name, 1
        while any(rule.name == other.name for other in rules):  # receipts identify rules by name
            number += 1
            rule.name = f"{name}_{number}"
        rules.append(rule)
    return rules


def parse_rule(spec: str) -> Rule:
    """Build the rule that a text such as "max-length:500" describes; raise ConfigError if the text is not valid."""
    kind, _, argument = spec.partition(":")
    known = KNOWN.get(kind.strip().lower().replace("_", "-"))
    if known is None:
        where = f" in {spec!r}" if spec != kind else ""
        near = get_close_matches(kind.strip().lower(), KNOWN, 1)
        meant = f"did you mean {KNOWN[near[0]].example}? The" if near else "the"
        raise ConfigError(
            f"unknown rule {kind!r}{where}: {meant} rules that can be named here are {', '.join(KNOWN)}, "
            f"each with its settings, such as {KNOWN['max-length'].example}",
            value=spec,
        )
    if not argument.strip():
        raise ConfigError(
            f"the rule {spec!r} lacks its settings: write them after the name, such as {known.example}", value=spec
        )
    try:
        return known.make(argument.strip())
    except (InvalidAddress, RuleError) as error:
        raise ConfigError(f"cannot use the rule {spec!r}: {error}", value=spec) from error


def _allow_graph(argument: str) -> Rule:
    edges = _pairs("allow-graph", argument)
    if any(None in edge for edge in edges):
        raise ConfigError(f"'allow-graph:{argument}': an edge joins two agents, so {ANY} is invalid: name both agents")
    return AllowGraph(edges)


def _by_settings(
    make: Callable[..., Rule], kind: str, known: Mapping[str, Callable[[str], Any]], bare: str | None = None
) -> Callable[[str], Rule]:
    """Return a function that builds a rule from a text with settings. `make` gets the settings as arguments.

    Args: `kind`, `known` and `bare` are those of `_settings`, which parses the text.
    """
    return lambda argument: make(**_settings(kind, argument, known, bare))


def _ban(make: Callable[[Rule, int], Rule], kind: str) -> Callable[[str], Rule]:
    def build(argument: str) -> Rule:
        after, _, check = argument.partition(":")
        if not check.strip():
            raise ConfigError(
                f"the rule '{kind}:{argument}' does not say which messages are violations: add a rule that finds them, "
                f"such as {kind}:3:max-length:500"
            )
        return make(parse_rule(check.strip()), _settings(kind, after, {"after": int}, bare="after")["after"])

    return build


def _settings(
    kind: str, text: str, known: Mapping[str, Callable[[str], Any]], bare: str | None = None
) -> dict[str, Any]:
    """Return the settings that are given in a text `key=value,key=value`, by key.

    Args: `kind` is the name of the rule, for errors. `known` has, for each key, the function that reads the key's
    value. `bare` is a key that the text must have (None: there is no such key). If this key comes first, its value may
    be written without `key=`.
    """
    settings: dict[str, Any] = {}
    for place, part in enumerate(filter(str.strip, text.split(","))):
        key, equals, value = part.partition("=")
        key = key.strip().replace("-", "_")
        if bare is not None and place == 0 and not equals:
            key, value = bare, part
        if key not in known:
            raise ConfigError(
                f"cannot read {part.strip()!r} in the rule {f'{kind}:{text}'!r}: write {KNOWN[kind].example}"
            )
        if key in settings:
            raise ConfigError(f"the rule {f'{kind}:{text}'!r} has {key!r} twice: write {KNOWN[kind].example}")
        try:
            settings[key] = known[key](value.strip())
        except ValueError as error:
            expected = "a whole number" if known[key] is int else "a number"
            raise ConfigError(
                f"the rule {f'{kind}:{text}'!r} has {key}={value.strip()!r}, which is not {expected}: write "
                f"{KNOWN[kind].example}"
            ) from error
    if bare is not None and bare not in settings:
        raise ConfigError(f"the rule {f'{kind}:{text}'!r} lacks {bare!r}: write {KNOWN[kind].example}")
    return settings


def _pairs(kind: str, argument: str) -> list[Pair]:
    return [_pair(pair.strip(), kind) for pair in argument.split(",") if pair.strip()]


def _pair(text: str, kind: str) -> Pair:
    sides = text.split(ARROW if ARROW in text else "-")
    if len(sides) != 2 or not all(side.strip() for side in sides):
        pairs = "1-2" if kind == "allow-graph" else "1-2, 1-* or *-2"
        raise ConfigError(
            f"the rule {kind!r} has {text!r}, which is not a pair of agents: write {pairs}; if an id contains a "
            f"hyphen, write A{ARROW}B (in a shell, put quotes around the rule)"
        )
    return _side(sides[0]), _side(sides[1])


def _side(text: str) -> AgentId | None:
    return None if text.strip() == ANY else check_id(text.strip())


class Known(NamedTuple):
    """A rule that can be written as text, such as "max-length:500".

    `make` builds the rule from its settings, which are the text after the first colon, such as "500". `example` shows
    how to write the whole rule, and may explain it.
    """

    make: Callable[[str], Rule]
    example: str


KNOWN = {
    "black-list": Known(lambda text: BlackList(_pairs("black-list", text)), "black-list:1-2,3-*,*-4"),
    "allow-graph": Known(_allow_graph, "allow-graph:1-2,2-1"),
    "sender-ban": Known(
        _ban(SenderBan, "sender-ban"),
        "sender-ban:3:max-length:500 (after 3 messages that max-length blocks) or sender-ban:after=3:max-length:500",
    ),
    "edge-ban": Known(_ban(EdgeBan, "edge-ban"), "edge-ban:3:max-length:500 (after 3 such messages to one recipient)"),
    "rate-limit": Known(
        _by_settings(RateLimit, "rate-limit", {"per_second": float, "per_round": int}),
        "rate-limit:per_second=5,per_round=100",
    ),
    "round-quota": Known(
        _by_settings(RoundQuota, "round-quota", {"contacts": int, "blocked": int}),
        "round-quota:contacts=10,blocked=5",
    ),
    "pattern": Known(
        lambda text: Pattern([word.strip() for word in text.split("|") if word.strip()]), "pattern:word|some words"
    ),
    "sample": Known(
        _by_settings(Sample, "sample", {"share": float, "seed": int}, "share"),
        "sample:0.1 (blocks a tenth of the messages) or sample:share=0.1,seed=7",
    ),
    "max-length": Known(
        _by_settings(MaxLength, "max-length", {"limit_bytes": int}, "limit_bytes"),
        "max-length:500 (blocks more than 500 bytes of JSON) or max-length:limit_bytes=500",
    ),
}
