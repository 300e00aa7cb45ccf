"""Rules as they are written on the command line."""

import pytest

from ray_messaging.cli.rule_specs import parse_rules
from ray_messaging.errors import ConfigError


def pairs(spec):
    (rule,) = parse_rules([spec])
    return rule.pairs


def test_pairs():
    assert pairs("black-list:1-2,3-*, *-4") == {(1, 2), (3, None), (None, 4)}
    assert pairs("black_list:ann-bob") == {("ann", "bob")}
    assert pairs("black-list:1-austria->1-turkey,-1->*") == {("1-austria", "1-turkey"), (-1, None)}


@pytest.mark.parametrize("name", ["list.csv", "list of pairs"])
def test_pairs_of_a_file(tmp_path, name):
    path = tmp_path / name
    path.write_text("\ufefffrom,to\n1,2\n\n 1-austria , *\n*,ann\n", encoding="utf-8")
    assert pairs(f"black-list:{path}") == {(1, 2), ("1-austria", None), (None, "ann")}


def test_order_and_names():
    rules = parse_rules(["max-length:500", "black-list:1-2", "black-list:3-4"])
    assert [rule.name for rule in rules] == ["max_length", "black_list", "black_list_2"]
    assert rules[0].limit_bytes == 500
    assert parse_rules([]) == []


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("foo:1", "the rules are black-list:.* and max-length:500"),
        ("", "unknown rule ''"),
        ("black-list", "says no more than its name: write black-list:1-2"),
        ("max-length:", "write max-length:500"),
        ("max-length:many", "write a number of bytes"),
        ("max-length:1", "blocks every payload"),
        ("black-list:1-2-3", "cannot read '1-2-3' as a pair .* in quotes"),
        ("black-list:12", "cannot read '12' as a pair"),
        ("black-list:1-", "cannot read '1-' as a pair"),
        ("black-list:a?-2", "agent id 'a\\?' cannot be used"),
        ("black-list:nowhere.csv", "cannot read the black list 'nowhere.csv'"),
    ],
)
def test_what_cannot_be_read(spec, words):
    with pytest.raises(ConfigError, match=words):
        parse_rules([spec])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("1,2\n1,2,3\n", "black.csv:2: expected two ids"),
        ("1,2\n\n1,\n", "black.csv:3: expected two ids"),
        ("a:b,2\n", "black.csv:1: agent id 'a:b'"),
    ],
)
def test_broken_files_are_blamed_by_line(tmp_path, content, words):
    path = tmp_path / "black.csv"
    path.write_text(content)
    with pytest.raises(ConfigError, match=words):
        parse_rules([f"black-list:{path}"])


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "black.csv"
    path.write_bytes(b"\xff\xfe1,2")
    with pytest.raises(ConfigError, match="cannot read the black list"):
        parse_rules([f"black-list:{path}"])
