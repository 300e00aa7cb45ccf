"""docs/api.md: every public call is there, and its example runs."""

import re
import textwrap
from pathlib import Path

import pytest
from support.step_society import open_step

import ray_messaging
from ray_messaging import Group, Message, Messager, Messages, Messaging, Outgoing, Receipt, Receipts
from ray_messaging.cluster.handles.experiment_steps import ExperimentSteps
from ray_messaging.cluster.run.agent import Agent
from ray_messaging.cluster.run.crowd import Crowd
from ray_messaging.steps.step import Step

PAGE = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
DOORS = "Two doors: Group and Messager"
# What a handle sets on itself is public, too.
OF_ONE = {
    Group: {"name", "actor", "step"},
    Messager: {"exp_id"},
    Step: {name for name in vars(open_step()) if not name.startswith("_")},
    Crowd: {"name", "ids", "state", "shared"},
}
OF_THE_LOOP = {"begin"}  # which is for the loop over a run's agents alone
TITLES = {ExperimentSteps: "Steps of an experiment", Agent: "Agents of a run", Crowd: "Agents of a run"}


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


@pytest.mark.parametrize(
    "kind",
    [
        Messaging,
        Group,
        Messager,
        Step,
        ExperimentSteps,
        Agent,
        Crowd,
        Outgoing,
        Message,
        Messages,
        Receipt,
        Receipts,
    ],
)
def test_every_public_call_is_in_its_classs_section(kind):
    public = {name for name in dir(kind) if not name.startswith("_")} | OF_ONE.get(kind, set())
    section = SECTIONS[TITLES.get(kind, kind.__name__)] + column_of_the_doors(kind)
    assert public - names_in_code(section) - OF_THE_LOOP == set()


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
