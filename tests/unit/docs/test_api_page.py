"""docs/api.md names what is public, and its example runs; each public call has a docstring, which is its reference."""

import functools
import inspect
import re
import textwrap
from pathlib import Path

import pytest

import ray_messaging
from ray_messaging import Group, Messager, Outgoing
from ray_messaging.cluster.handles.experiment_steps import ExperimentSteps
from ray_messaging.cluster.run.agent import Agent
from ray_messaging.cluster.run.crowd import Crowd
from ray_messaging.models import Chat
from ray_messaging.steps.step import Step

PAGE = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
DOORS = "Two doors: Group and Messager"
# Calls of these, too, are on the site's reference page, though the classes have no public name: .ci/site.py.
WITHOUT_A_NAME = [Step, ExperimentSteps, Agent, Crowd, Chat]
CLASSES = [value for name in ray_messaging.__all__ if isinstance(value := getattr(ray_messaging, name), type)]


def names_in_code(text):
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return {name for code in re.findall(r"`([^`]+)`", text) for name in re.findall(r"\w+", code)}


def test_every_public_name_is_on_the_page():
    assert set(ray_messaging.__all__) - names_in_code(PAGE) - SECTIONS.keys() == set()


def column_of_the_doors(kind):
    """Return the column of the table of both doors that is for a class, "" for any other class."""
    rows = [
        [cell.strip() for cell in row.split("|")] for row in re.findall(r"^\|(.*)\|$", SECTIONS[DOORS], re.MULTILINE)
    ]
    columns = dict(zip((name.strip("`") for name in rows[0]), zip(*rows, strict=True), strict=True))
    return "\n".join(columns.get(kind.__name__, ()))


@pytest.mark.parametrize("kind", [*CLASSES, *WITHOUT_A_NAME], ids=lambda kind: kind.__name__)
def test_each_public_call_says_what_it_does(kind):
    """The reference page and `help` are made of docstrings."""
    ours = [owner for owner in reversed(kind.__mro__) if owner.__module__.startswith("ray_messaging")]
    calls = {name: vars(owner)[name] for owner in ours for name in vars(owner)}
    public = [name for name, call in calls.items() if not name.startswith("_") and is_call(call)]
    assert [name for name in public if not inspect.getdoc(getattr(kind, name))] == []
    assert inspect.getdoc(kind)


def is_call(value):
    return callable(value) or isinstance(value, property | classmethod | staticmethod | functools.cached_property)


def test_what_both_doors_have_is_side_by_side():
    both = {name for name in {*dir(Group)} & {*dir(Messager)} if not name.startswith("_")}
    for kind in (Group, Messager):
        assert both - names_in_code(column_of_the_doors(kind)) == set()


async def test_the_example_of_the_user_runs(capsys, local):
    (example,) = re.findall(r"^```python\n(.*?)^```$", SECTIONS["The user"], re.DOTALL | re.MULTILINE)
    names = {"Messager": Messager, "Outgoing": Outgoing, "server": local}
    exec("async def run():\n" + textwrap.indent(example, "    "), names)
    await names["run"]()
    counts, *answers = capsys.readouterr().out.splitlines()
    assert counts == "{'delivered': 2, 'published': 0, 'undeliverable': 0, 'blocked': 0}"
    assert answers == ["7 {'answer': 'well'}", "8 {'answer': 'well'}"]
