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


def test_order_and_names():
    rules = parse_rules(["max-length:500", "black-list:1-2", "black-list:3-4"])
    assert [rule.name for rule in rules] == ["max_length", "black_list", "black_list_2"]
    assert rules[0].limit_bytes == 500
    assert parse_rules([]) == []


@pytest.mark.parametrize(
    ("spec", "described"),
    [
        ("rate-limit:per_second=0.5, per-round=7", {"kind": "RateLimit", "per_second": 0.5, "per_round": 7}),
        ("rate_limit:per_round=7", {"kind": "RateLimit", "per_second": None, "per_round": 7}),
        ("round-quota:contacts=3,blocked=4", {"kind": "RoundQuota", "contacts": 3, "blocked": 4}),
        ("sample:0.1", {"kind": "Sample", "share": 0.1, "seed": 0, "action": "block"}),
        ("sample:0.1,seed=7", {"kind": "Sample", "share": 0.1, "seed": 7, "action": "block"}),
        ("sample:share=0.1", {"kind": "Sample", "share": 0.1, "seed": 0, "action": "block"}),
        ("sample:seed=7, share=0.1", {"kind": "Sample", "share": 0.1, "seed": 7, "action": "block"}),
        ("max-length:limit_bytes=500", {"kind": "MaxLength", "limit_bytes": 500}),
        ("max-length:limit-bytes=500", {"kind": "MaxLength", "limit_bytes": 500}),
        ("sender-ban:after=2:max-length:limit_bytes=9", {"kind": "SenderBan", "after": 2}),
        ("edge-ban:after=2:sample:share=0.5", {"kind": "EdgeBan", "after": 2}),
        ("pattern:spam|free money| ", {"kind": "Pattern", "words": ["spam", "free money"], "regexes": []}),
        ("allow-graph:1-2,ann-1", {"kind": "AllowGraph", "edges": 2}),
    ],
)
def test_settings(spec, described):
    (rule,) = parse_rules([spec])
    assert described.items() <= rule.describe().items()


def test_bans_name_the_rule_that_finds_violations():
    sender, edge = parse_rules(["sender-ban:3:pattern:spam|scam", "edge-ban:1:sender-ban:2:max-length:9"])
    assert (sender.name, sender.after, sender.describe()["check"]["words"]) == ("sender_ban", 3, ["spam", "scam"])
    assert edge.describe()["check"]["check"]["limit_bytes"] == 9


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("foo:1", "the rules that can be named here are black-list, .*such as max-length:500"),
        ("blacklist:1-2", r"did you mean black-list:1-2.*\? The rules that can"),
        ("", "unknown rule ''"),
        ("black-list", "lacks its settings: write .*such as black-list:1-2"),
        ("max-length:", "such as max-length:500"),
        ("max-length:many", "limit_bytes='many', which is not a whole number: write max-length:500"),
        ("max-length:1", "blocks every payload"),
        ("black-list:1-2-3", "'1-2-3', which is not a pair .* put quotes"),
        ("black-list:12", "the rule 'black-list' has '12', which is not a pair of agents: write 1-2, "),
        ("black-list:1-", "'1-', which is not a pair"),
        ("black-list:a\x00-2", r"agent id 'a\\x00' cannot be used"),
        ("allow-graph:1-*", "an edge joins two agents"),
        ("allow-graph:1", "the rule 'allow-graph' has '1', which is not a pair of agents: write 1-2;"),
        ("pattern:|", "nothing to look for"),
        ("rate-limit:5", "cannot read '5' in the rule 'rate-limit:5': write rate-limit:per_second=5"),
        ("rate-limit:per_second=fast", "per_second='fast', which is not a number: write rate-limit"),
        ("rate-limit:per_round=1.5", r"per_round='1\.5', which is not a whole number: write rate-limit"),
        ("rate-limit:per_second=-1", r"per_second=-1\.0"),
        ("round-quota:contacts", "contacts='', which is not a whole number"),
        ("sample:2", r"share=2\.0"),
        ("sample:0.1,salt=3", "cannot read 'salt=3'"),
        ("sample:seed=7", "the rule 'sample:seed=7' lacks 'share': write sample:0.1"),
        ("sample:0.1,share=0.2", "the rule 'sample:0.1,share=0.2' has 'share' twice"),
        ("rate-limit:per_round=1,per-round=2", "has 'per_round' twice"),
        ("max-length:bytes=9", "cannot read 'bytes=9' in the rule 'max-length:bytes=9': write max-length:500"),
        ("max-length:9,9", "cannot read '9' in the rule 'max-length:9,9': write max-length:500"),
        ("sender-ban:count=3:max-length:9", "cannot read 'count=3' in the rule 'sender-ban:count=3'"),
        ("sender-ban::max-length:9", "the rule 'sender-ban:' lacks 'after': write sender-ban:3"),
        ("sender-ban:3", "add a rule that finds them, such as sender-ban:3:max-length:500"),
        ("sender-ban:x:max-length:9", "the rule 'sender-ban:x' has after='x', which is not a whole number"),
        ("edge-ban:0:max-length:9", "after=0"),
        ("edge-ban:3:nothing:9", "unknown rule 'nothing'"),
    ],
)
def test_invalid_rule_specs_are_refused(spec, words):
    with pytest.raises(ConfigError, match=words):
        parse_rules([spec])
