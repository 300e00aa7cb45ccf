"""The README's ten lines run as printed: on one node, and on two."""

import ast

import pytest
from support.cluster import run_apart
from support.doc_pages import blocks, run_block
from support.own_driver import Driver

from ray_messaging.steps.random_numbers import agent_generator

TWO_NODES = """
import ray
from support.bare_ray import start_cluster

cluster = start_cluster(resources={"left": 1})
cluster.add_node(num_cpus=2, resources={"right": 1})
ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
"""

PLACED = """
# The same again, with each group on a node of its own, and each task beside the other one's.
with Messaging.start("apart", rules=[rules.BlackList([(3, 13)])]) as messaging:
    left, right = {"resources": {"left": 0.1}}, {"resources": {"right": 0.1}}
    west = messaging.create_group("west", range(10), actor_options=left)
    east = messaging.create_group("east", range(10, 20), actor_options=right)
    where = lambda self: ray.get_runtime_context().get_node_id()
    nodes = {ray.get(group.actor.__ray_call__.remote(where)) for group in (west, east)}
    assert len(nodes) == 2, nodes
    for group, partners in [(west, east), (east, west)]:
        group.send_columns(group.agents, partners.agents, {"content": "hello"})
    print(ray.get([read.options(**right).remote(west), read.options(**left).remote(east)]))
ray.shutdown()
cluster.shutdown()
"""

EXPECTED = [
    [(n + 10, n, "hello") for n in range(10)],
    [(n, n + 10, "hello") for n in range(10) if n != 3],  # the black list stops agent 3
]


@pytest.fixture
def examples():
    return [block for block in blocks("README.md") if block.language == "python"]


@pytest.fixture
def ten_lines(examples):
    return examples[1]


def printed(output):
    return [ast.literal_eval(line) for line in output.splitlines() if line.startswith("[[")]


def test_the_examples_have_ten_lines(examples):
    for example in examples[:2]:
        lines = [line for line in example.text.splitlines() if line and not line.startswith(("import", "from"))]
        assert len(lines) <= 10


def test_the_example_runs_on_one_node(ray_cluster, ten_lines, capsys):
    run_block("README.md", ten_lines, {"__name__": "__main__"})
    assert printed(capsys.readouterr().out) == [EXPECTED]


@pytest.mark.long
def test_the_model_in_steps_gives_the_same_each_time(ray_cluster, examples, capsys):
    # One by one in numpy: agent 7's mood depends on 19 other agents, each of which hears one.
    run_block("README.md", examples[0], {"__name__": "__main__"})
    moods, heard = {}, {}
    for step in range(20):
        moods = {n: sum(heard.get(n, [])) / 10 + agent_generator(7, step, n).normal() for n in range(1000)}
        heard = {(n + 1) % 1000: [moods[n]] for n in range(1000)}
    assert ast.literal_eval(capsys.readouterr().out.splitlines()[-1]) == {"mood": moods[7]}


@pytest.mark.long
def test_ray_warns_of_nothing_that_the_model_in_steps_does(examples, home):
    driver = Driver(examples[0].text, home)
    output, errors = driver.process.communicate(timeout=300)
    assert driver.process.returncode == 0, errors
    assert ast.literal_eval(output.splitlines()[-1]).keys() == {"mood"}
    for noise in ("Using blocking", "FutureWarning", "grpc", "exporter"):
        assert noise not in output + errors


@pytest.mark.long
def test_the_example_runs_on_two_nodes(ten_lines):
    assert printed(run_apart("-c", TWO_NODES + ten_lines.text + PLACED)) == [EXPECTED, EXPECTED]
