"""The digest of a model's source: of its module's file, or of a function in a notebook."""

import importlib
import linecache
import sys
from functools import cache, partial
from types import FunctionType

import networkx as nx
import pandas as pd
import pytest

from ray_messaging.cluster.run.model_source import (
    change_of,
    changed_values,
    changes_of,
    inputs_of,
    name_of,
    source_of,
    values_used,
)
from ray_messaging.cluster.run.run_plan import plan_groups

MODEL = """
FACTOR = {factor}


def person(me, inbox):
    return FACTOR


class Crowd:
    def __call__(self, group, step):
        return FACTOR
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Return a function that writes a module with a factor, and imports it."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(factor):
        (tmp_path / "written_model.py").write_text(MODEL.format(factor=factor))
        sys.modules.pop("written_model", None)
        importlib.invalidate_caches()
        return importlib.import_module("written_model")

    yield write
    sys.modules.pop("written_model", None)


def test_whatever_a_models_file_says_is_in_its_digest(written):
    one = written(1)
    models = [one.person, partial(one.person, inbox=[]), one.Crowd()]
    (digest,) = {source_of(model) for model in models}
    assert source_of(written(22).person) != digest
    assert source_of(written(1).person) == digest


def in_a_notebook(cell, text):
    """Return a function as a notebook defines it: its module has no file."""
    linecache.cache[cell] = len(text), None, text.splitlines(keepends=True), cell
    names = {"__name__": "no_such_module"}
    exec(compile(text, cell, "exec"), names)
    return names["person"]


def test_a_function_of_a_notebook_has_its_own_text_as_source():
    one, same, other = (
        in_a_notebook(f"<cell {number}>", f"def person(me, inbox):\n    return {factor}\n")
        for number, factor in enumerate((1, 1, 2))
    )
    assert source_of(one) == source_of(same) != source_of(other)


def test_without_a_source_there_is_no_digest():
    names = {"__name__": "no_such_module"}
    exec(compile("def person(me, inbox): pass", "<nowhere>", "exec"), names)
    assert source_of(names["person"]) is None
    assert source_of(len) is None


def test_a_change_names_the_model():
    now = {"model": name_of(in_a_notebook), "source": "a"}
    assert change_of(now, now) is change_of(now, now | {"source": None}) is change_of(now, {"model": "x"}) is None
    assert change_of(now, now | {"source": "b"}).startswith(f"the source of the model {now['model']} differs from")
    assert "in_a_notebook, in place of m.crowd, differs" in change_of(now, {"model": "m.crowd", "source": "b"})


def inputs(agents=2, graph=None, shared=None):
    return inputs_of(agents, graph, shared, plan_groups(agents, 2, graph, 2))


def test_other_inputs_of_a_later_call_are_named():
    first = {"agents": pd.DataFrame({"age": [1, 2]}, index=["b", "a"]), "graph": nx.path_graph(["a", "b"])}
    same = {"agents": pd.DataFrame({"age": [2, 1]}, index=["a", "b"]), "graph": [("b", "a"), ("a", "b")]}
    one = inputs(**first, shared={"x": {1, 2}})
    assert None not in one.values()
    assert [*changes_of(one, one)] == [*changes_of(one, inputs(**same, shared={"x": {2, 1}}))] == []
    assert [*changes_of(one, {})] == [*changes_of(inputs(), one)] == []
    other = inputs(pd.DataFrame({"age": [1, 3]}, index=["b", "a"]), [("a", "b")], {"x": {1, 3}})
    told = [*changes_of(other, one)]
    assert [line.partition(" of this call")[0] for line in told] == ["the DataFrame agents=", "graph=", "shared="]


PROGRAM = """
LIMIT = {limit}

def helper(x):
    return x + {added}

def person(me, inbox):
    helper(LIMIT)

start = lambda me: {{"mood": {mood}}}
print("the plot" * {plots})
"""


def in_a_program(path, **numbers):
    """Return the globals of a program that has run."""
    text = PROGRAM.format(**{"limit": 1, "added": 1, "mood": 1, "plots": 0} | numbers)
    path.write_text(text)
    linecache.checkcache(str(path))
    names = {"__name__": "__main__"}
    exec(compile(text, str(path), "exec"), names)
    return names


def test_of_a_program_only_what_the_model_uses_is_in_the_digest(tmp_path):
    path = tmp_path / "program.py"
    model = source_of(in_a_program(path)["person"])
    assert model == source_of(in_a_program(path, plots=22, mood=33)["person"])
    others = {source_of(in_a_program(path, **changed)["person"]) for changed in ({"limit": 22}, {"added": 22})}
    assert len({model, *others}) == 3
    start = source_of(in_a_program(path)["start"])
    assert start == source_of(in_a_program(path, added=22)["start"])
    assert start != source_of(in_a_program(path, mood=33)["start"])


def test_a_lambda_with_a_set_has_one_digest_in_any_order_of_the_set():
    """The order of a set of strs differs between processes, so the same study could not go on in a new one."""

    def source(members):
        code = (lambda result: result in {0, 8}).__code__
        constants = tuple(frozenset(members) if isinstance(each, frozenset) else each for each in code.co_consts)
        return source_of(FunctionType(code.replace(co_consts=constants), {"__name__": "__main__"}))

    assert repr(frozenset((0, 8))) != repr(frozenset((8, 0)))
    assert source((0, 8)) == source((8, 0)) != source((0, 16))


def test_a_function_with_a_cache_in_a_program_is_in_the_digest_of_its_model(tmp_path):
    def source(added):
        text = f"import functools\n\n@functools.cache\ndef helper(x):\n    return x + {added}\n\n"
        text += "def person(me, inbox):\n    return helper(1)\n"
        (tmp_path / "program.py").write_text(text)
        linecache.checkcache(str(tmp_path / "program.py"))
        names = {"__name__": "__main__"}
        exec(compile(text, str(tmp_path / "program.py"), "exec"), names)
        return source_of(names["person"])

    assert source(1) == source(1) != source(22)


def test_the_objects_of_a_program_that_the_model_uses_are_its_values(tmp_path):
    text = "import threading\nFRIENDS = {friends}\nOTHERS = []\nLOCK = threading.Lock()\n"
    text += "def helper():\n    return FRIENDS, LOCK\n\ndef person(me, inbox):\n    return helper, me.OTHERS\n"

    def values(friends):
        names = {"__name__": "__main__"}
        exec(compile(text.format(friends=friends), "<program>", "exec"), names)
        return values_used({"town": names["person"]})

    one, same, other = values({3: [1], 4: {2, 5}}), values({3: [1], 4: {5, 2}}), values({3: [1], 4: {2, 6}})
    assert one == same
    assert one.keys() == {"'FRIENDS' of helper", "'LOCK' of helper"}
    assert one["'LOCK' of helper"] is None  # it has no digest
    assert changed_values(one, other) == ["'FRIENDS' of helper"]
    now = {"model": "m.person", "source": "a", "values": one}
    assert change_of(now, now) is change_of(now, {"model": "m.person", "source": "a"}) is None
    assert change_of(now, now | {"values": other}).startswith("'FRIENDS' of helper, which the model uses, differs from")


def cautious(me):
    return 1


def bold(me):
    return 2


def built(policy, other=None):
    def person(me, inbox):
        return policy(me), other and other(me)

    return person


def scaled(by):
    def policy(me):
        return by

    return policy


class Town:
    def __init__(self, policy):
        self.policy = policy

    def __call__(self, me, inbox):
        return self.policy(me)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Town(lambda me: 1), Town(lambda me: 2)),
        (Town(scaled(1)).__call__, Town(scaled(2)).__call__),
        (built(cautious), built(bold)),
        (built(lambda me: 1), built(lambda me: 2)),
        (built(scaled(1), scaled(5)), built(scaled(2), scaled(5))),
        (partial(bold, lambda me: 1), partial(bold, lambda me: 2)),
        (partial(bold, scaled(1)), partial(bold, scaled(2))),
        (built(int), built(float)),
        (built(cache(scaled(1))), built(cache(scaled(2)))),
    ],
)
def test_another_function_that_a_model_is_bound_to_is_another_value(one, other):
    """A study that was called again with another function returned the results of the former one."""
    assert values_used(one) == values_used(one)
    assert changed_values(values_used(one), values_used(other))


def test_the_environment_and_the_defaults_of_installed_functions_are_no_values():
    """The same study was refused in another shell, and would be with another version of Python."""
    text = "import json\nfrom json import dumps\nfrom os import environ\n"
    text += "def person(me, inbox):\n    return dumps(environ['HOME']), json\n"
    names = {"__name__": "__main__"}
    exec(compile(text, "<program>", "exec"), names)
    assert values_used(names["person"]) == {}


def test_another_kind_of_an_agent_in_a_later_call_is_named():
    def with_kinds(**agents):
        return inputs_of(agents, None, None, plan_groups(agents, 2, None, 2, model={"a": len, "b": len}))

    first, same, other = with_kinds(a=[1, 2], b=[3]), with_kinds(b=[3], a=[2, 1]), with_kinds(a=[1], b=[2, 3])
    assert [*changes_of(same, first)] == []
    (line,) = changes_of(other, first)
    assert line.startswith("the kind of some agents in agents= of this call of run differs")
