"""The names that users may import, locked: a change here is a change for them."""

import ast
import inspect
import re
from collections import Counter
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

import pytest

import ray_messaging
from ray_messaging import Group, Messager, errors, rules

NAMES = [
    "Agent", "Answers", "AsyncGroup", "Audience", "BlockedListener", "BlockedMessage", "Calls", "Count", "Crowd",
    "EventLog", "Finding", "Gini", "Group", "GroupAnswers", "Health", "Inspector", "LocalServer", "LogRow", "Max",
    "Mean", "Message", "Messager", "Messages", "Messaging", "MessagingConfig", "MessagingError", "Min", "Msg", "Of",
    "Outgoing", "Price", "Quantile", "Receipt", "Receipts", "RedisConfig", "Result", "Rule", "Run", "Share", "Step",
    "Steps", "Study", "Sum", "Survey", "Tracing", "batch_run", "by_content", "columns", "compare", "errors", "grid",
    "id_tuple", "report_usage", "rules", "run",
]  # fmt: skip

RULES = [
    "ALLOW", "Added", "AllowGraph", "BlackList", "Block", "EdgeBan", "MaxLength", "Moderator", "OpenAIModerator",
    "PairCheck", "Pattern", "RateLimit", "RoundQuota", "Rule", "Sample", "SenderBan", "SlowRule", "StepRule",
    "StepVerdicts", "Supervisor", "Table", "Verdict", "block", "label", "rewrite",
]  # fmt: skip


def test_all_is_sorted_and_locked():
    assert list(ray_messaging.__all__) == sorted(NAMES) == NAMES


def test_every_public_name_comes_by_a_star_is_shown_by_dir_and_has_a_docstring():
    names = {}
    exec("from ray_messaging import *", names)
    assert {*ray_messaging.__all__, "errors"} <= set(dir(ray_messaging))
    for name in ray_messaging.__all__:
        assert names[name].__doc__, name


def test_rules_are_locked():
    assert rules.__all__ == sorted(RULES) == RULES


ERRORS = [
    name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, errors.MessagingError)
]


def test_the_module_of_errors_offers_only_errors():
    names = {}
    exec("from ray_messaging.errors import *", names)
    assert sorted({*names} - {"__builtins__"}) == sorted(ERRORS) == errors.__all__ == dir(errors)


def test_every_error_is_drawn_in_the_tree_and_only_their_root_is_at_the_top():
    for name in ERRORS:
        assert f" {name} " in f" {errors.__doc__.replace(chr(10), ' ')} ", name
    assert {*ERRORS} & {*ray_messaging.__all__} == {"MessagingError"}


def test_each_error_is_raised_with_the_facts_that_its_class_names():
    lacking = []
    for path in sorted(Path(ray_messaging.__file__).parent.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id not in ERRORS:
                continue
            kind, given = getattr(errors, call.func.id), {each.arg for each in call.keywords}
            facts = {fact for each in kind.__mro__ for fact in inspect.get_annotations(each)}
            lacks = {fact for fact in facts if not hasattr(kind, fact)} - given
            lacking += [(f"{path.name}:{call.lineno}", call.func.id, lacks)] if lacks and None not in given else []
    assert lacking == []


@pytest.mark.parametrize("name", sorted({*ERRORS} - {"MessagingError"}))
def test_an_error_at_the_top_says_where_it_is(name):
    words = f"from ray_messaging.errors import {name}"
    assert not hasattr(ray_messaging, name)
    with pytest.raises(AttributeError, match=words):
        getattr(ray_messaging, name)
    with pytest.raises(ImportError, match=words):
        exec(f"from ray_messaging import {name}")


DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
PACKAGE = Path(ray_messaging.__file__).parent
API = (DOCS / "api.md").read_text()
IMPORT = re.compile(r"^ *from (ray_messaging[\w.]*) import (?:\(([^)]*)\)|([^#\n]*))", re.MULTILINE)


def table(head):
    """Return the rows of the table of docs/api.md that begins with a cell, each as a list of cells."""
    lines = API[API.index(f"| {head} |") :].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in takewhile(bool, lines)][2:]


def test_every_name_of_the_page_of_the_api_can_be_imported():
    named = [name for cell, *_ in table("name") for name in re.findall(r"`([\w.]+)`", cell)]
    named += [f"errors.{name}" for _, cell, _ in table("about") for name in re.findall(r"`(\w+)`", cell)]
    named += re.findall(r"help\(ray_messaging\.([\w.]+)\)", API)
    assert {"GroupAnswers", "Agent", "Step", "errors.TraceError"} < {*named}
    for name in named:
        found = ray_messaging
        for part in name.split("."):
            found = getattr(found, part)


def test_every_call_of_a_group_or_a_messager_on_the_page_of_the_api_exists():
    for _, *cells in table("what you want to do"):
        for kind, cell in zip((Group, Messager), cells, strict=True):
            for name in re.findall(r"(?<!messaging\.)(?<!group\.aio\.)\b([a-z_]+)\(", cell.split(" for ")[0]):
                assert hasattr(kind, name), (kind, name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_import_of_a_page_works(page):
    for module, some, others in IMPORT.findall(page.read_text()):
        if find_spec(module) is None:
            pytest.fail(f"there is no module {module}")
        with suppress(ImportError):  # a peer that is not installed
            found = import_module(module)
            for name in filter(None, map(str.strip, (some + others).split(","))):
                assert hasattr(found, name.partition(" as ")[0]), (module, name)


def test_the_version_is_that_of_the_package():
    assert ray_messaging.__version__ == version("ray-messaging")
    assert "__version__" in dir(ray_messaging)


def test_no_class_and_no_file_has_the_name_of_another():
    theirs = {"Messager", "Message"}  # names of AgentSociety, in `compat`, too
    files = [path for path in PACKAGE.rglob("*.py") if not path.name.startswith("__")]
    classes = re.findall(r"^class (\w+)", "\n".join(path.read_text() for path in files), re.MULTILINE)
    twice = [name for name, count in Counter([*classes, *(path.name for path in files)]).items() if count > 1]
    assert {*twice} <= theirs
