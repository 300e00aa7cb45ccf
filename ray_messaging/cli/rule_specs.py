"""Rules as they are written on the command line: `black-list:1-2,3-*`, `black-list:FILE.csv`, `max-length:500`."""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ray_messaging.channels import AgentId, check_id
from ray_messaging.errors import ConfigError, InvalidAddress, RuleError
from ray_messaging.interception.rules import BlackList, MaxLength, Rule
from ray_messaging.interception.rules.black_list import Pair

ANY = "*"
ARROW = "->"
COLUMNS = 2
HEADERS = {("from", "to"), ("from_id", "to_id"), ("src", "dst"), ("sender", "receiver"), ("source", "target")}


def parse_rules(specs: Sequence[str]) -> list[Rule]:
    """Build rules in the order given; raise ConfigError where one cannot be read, naming those that are known."""
    rules: list[Rule] = []
    for spec in specs:
        kind, _, argument = spec.partition(":")
        known = KNOWN.get(kind.strip().lower().replace("_", "-"))
        if known is None:
            raise ConfigError(
                f"unknown rule {kind!r} in --rules {spec!r}: the rules are "
                + " and ".join(known.example for known in KNOWN.values()),
                value=spec,
            )
        if not argument.strip():
            raise ConfigError(f"--rules {spec!r} says no more than its name: write {known.example}", value=spec)
        try:
            rule = known.make(argument.strip())
        except (InvalidAddress, RuleError) as error:
            raise ConfigError(f"cannot use --rules {spec!r}: {error}", value=spec) from error
        _rename(rule, rules)
        rules.append(rule)
    return rules


def _rename(rule: Rule, others: Sequence[Rule]) -> None:
    """Give a rule a name of its own: receipts and the account name it."""
    name, number = rule.name, 1
    while any(rule.name == other.name for other in others):
        number += 1
        rule.name = f"{name}_{number}"


def _black_list(argument: str) -> Rule:
    path = Path(argument)
    if path.suffix.lower() == ".csv" or path.is_file():
        return BlackList(_pairs_of_file(path))
    return BlackList(_pair(pair.strip()) for pair in argument.split(",") if pair.strip())


def _max_length(argument: str) -> Rule:
    try:
        limit_bytes = int(argument)
    except ValueError as error:
        raise ConfigError(f"max-length:{argument}: write a number of bytes, as in max-length:500") from error
    return MaxLength(limit_bytes)


def _pair(text: str) -> Pair:
    sides = text.split(ARROW if ARROW in text else "-")
    if len(sides) != COLUMNS or not all(side.strip() for side in sides):
        raise ConfigError(
            f"cannot read {text!r} as a pair of agents: write 1-2, 1-* or *-2; where ids hold a -, write "
            f"'A{ARROW}B' in quotes, or the pairs into a file, black-list:FILE.csv"
        )
    return _side(sides[0]), _side(sides[1])


def _side(text: str) -> AgentId | None:
    return None if text.strip() == ANY else check_id(text.strip())


def _pairs_of_file(path: Path) -> list[Pair]:
    """Read a CSV of two columns; a header such as `from,to` is left out. Raises ConfigError with file and line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [(number, row) for number, row in enumerate(csv.reader(file), 1) if any(map(str.strip, row))]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read the black list {str(path)!r} ({reason}): give a CSV file of two columns") from (
            error
        )
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
    """Say how a rule is built from what follows its name."""

    make: Callable[[str], Rule]
    example: str


KNOWN = {
    "black-list": Known(_black_list, "black-list:1-2,3-*,*-4 or black-list:FILE.csv"),
    "max-length": Known(_max_length, "max-length:500 (bytes of JSON)"),
}
