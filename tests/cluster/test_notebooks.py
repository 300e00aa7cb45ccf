"""What a notebook shows of each object that users hold, and the example notebook."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from ray_messaging import Messaging, Steps

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
MARKUP = {"text": "<script>alert(1)</script>\x1b[31m"}


def shown(thing):
    """Return the text that a notebook shows of an object, without tags."""
    found = thing._repr_html_()
    assert "<script" not in found
    assert "\x1b" not in found
    return re.sub(r"(</?[a-z][^>]*>)+", "|", found)


def test_each_object_is_a_table(logged):
    messaging, west, east = logged
    assert "|west|10|" in shown(messaging)
    assert f"Group('west', exp_id={messaging.exp_id!r})" in shown(west).replace("&#x27;", "'")
    receipts = west.send_columns([0, 1], [11, 12], MARKUP)
    assert "|blocked|" in shown(receipts)
    assert "|black_list|" in shown(receipts)
    with east.fetch_messages(limit=1, timeout=60) as messages:
        assert "&lt;script&gt;alert(1)" in shown(messages)
        assert "|1|12|agent-chat|" in shown(messages)
    messaging.log.balance()
    assert "&lt;script&gt;" in shown(messaging.log)
    assert re.search(r"[1-9][\d,]* blocked", shown(messaging.log))
    assert "|ok|" in shown(messaging.health())
    assert f"{len(messaging.dead_letters):,} letters" in shown(messaging.dead_letters)
    assert f"{len(messaging.agents()):,} agents in {len(messaging.groups()):,} groups" in shown(messaging.agents())


@pytest.mark.long
def test_a_run_and_its_steps_are_tables(ray_cluster):
    def person(me, inbox):
        me.state["heard"] = len(inbox)
        me.send(1 - me.id, MARKUP)

    with Messaging.start("notebook-steps", steps=Steps(seed=1)) as messaging:
        result = messaging.run(person, agents=2, groups=1, until=2)
        assert "2 states after 2 steps" in shown(result)
        assert "|0|1|1|1|" in shown(result)
        assert messaging.health().ok  # nobody reads the mailboxes of a run that has ended, and nobody should
    with Messaging.start("notebook-steps", steps=Steps()) as messaging:
        group = messaging.create_group("west", [1])
        for step in group.steps(until=2):
            step.send(1, 1, MARKUP)
            assert f"Step({step.number}, 1 agents, {step.number} messages)" in shown(step)
            assert ("&lt;script&gt;" in shown(step)) == (step.number == 1)
        assert "|west|1|" in shown(messaging.steps)


@pytest.mark.long
def test_the_example_notebook_runs(tmp_path, monkeypatch):
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))  # of a home that is not writable IPython warns
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(EXAMPLES)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    tables = [output["data"]["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert len(tables) == 5
    assert all("<table" in table for table in tables)
    assert not [output for output in outputs if output.output_type == "error"]
