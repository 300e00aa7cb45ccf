"""CONTRIBUTING.md: its example of a rule works, with its tests, its syntax and its case on Ray."""

import sys
import types

import pytest
from support.doc_pages import blocks
from support.rules import batch_of, blocked

from ray_messaging.cli import rule_specs
from ray_messaging.interception import rules
from tests.cluster import test_every_rule_kind as on_ray

PAGE = "CONTRIBUTING.md"


@pytest.fixture
def example(monkeypatch):
    """Give the blocks of the section: the class, which is imported as if it were in the package, and its tests."""
    section = [block.text for block in blocks(PAGE) if block.section == "Add a rule"]
    module = types.ModuleType("max_keys")
    monkeypatch.setitem(sys.modules, "max_keys", module)
    exec(section[0], vars(module))
    monkeypatch.setattr(rules, "MaxKeys", module.MaxKeys, raising=False)
    return section


def test_its_tests_pass(example):
    names = {}
    exec(example[1], names)
    tests = [value for name, value in names.items() if name.startswith("test_")]
    assert len(tests) == 3
    for test in tests:
        test()


def test_its_syntax_makes_the_rule(example):
    known = eval("{" + example[2] + "}", vars(rule_specs) | {"MaxKeys": rules.MaxKeys})
    assert known["max-keys"].make("3").describe() == {"name": "max_keys", "kind": "MaxKeys", "limit": 3}


def test_its_case_says_what_the_rule_does(example):
    make, batches = eval("{" + example[3] + "}", vars(on_ray))["MaxKeys"]
    for batch in batches:
        asked = batch_of([message[:2] for message in batch], payloads=[message[2] for message in batch])
        assert blocked(make(), asked) == [row for row, message in enumerate(batch) if message[3]]
