"""Importing one module loads that module and its needs."""

import json
import pickle
import subprocess
import sys

import pytest

import ray_messaging

HEAVY = {"numpy", "pyarrow", "pydantic", "ray", "redis", "aiomqtt", "paho", "openai", "pandas"}


def all_loaded(code):
    """Return the modules that a fresh interpreter has loaded after `code`."""
    code = f"import json, sys\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def loaded(code):
    """Return the heavy modules that a fresh interpreter has loaded after `code`."""
    return HEAVY & all_loaded(code)


@pytest.mark.parametrize(
    ("code", "needs"),
    [
        ("import ray_messaging", set()),
        ("import ray_messaging.errors", set()),
        ("import ray_messaging.addressing.channels", set()),
        ("from ray_messaging.errors import MailboxFull", set()),
        ("from ray_messaging import MessagingConfig", {"pydantic"}),
        ("import ray_messaging; dir(ray_messaging); 'Messaging' in ray_messaging.__all__", set()),
    ],
)
def test_an_import_loads_only_what_it_needs(code, needs):
    assert loaded(code) == needs


def test_messages_and_rules_come_without_ray():
    assert "ray" not in loaded("from ray_messaging import Message, Messages, Receipt, Rule, rules")


def test_messaging_brings_ray_and_no_other_package():
    beside_ray = all_loaded("from ray_messaging import Messaging") - all_loaded("import ray")
    foreign = {name for name in beside_ray if name.partition(".")[0] not in {"ray_messaging", *sys.stdlib_module_names}}
    assert not foreign  # pydantic, pyarrow, redis, uvloop, rich: the call that needs one loads it
    assert beside_ray.isdisjoint({"ray_messaging.messager_engine", "ray_messaging.config"})


CLUSTER = "ray_messaging.cluster"
GROUP = {"ray_messaging.interception.interceptor.interceptor", "ray_messaging.interception.rules.pattern"}
STARTED = {"redis", "pyarrow", "rich", "duckdb", "pandas", "regex"}


@pytest.mark.parametrize(
    ("modules", "spared"),
    [
        # Ray loads the class of each handle that a process has: that of the interceptor.
        (
            ["actors.group_actor", "run.run_actor", "handles.messagers", "actors.interceptor_actor"],
            STARTED | GROUP,
        ),
        (["actors.interceptor_host", "lifecycle", "run.run"], STARTED),
        (["actors.redis_server_actor"], STARTED | {"numpy"}),
    ],
    ids=["a group", "the interceptor and the driver", "the embedded server"],
)
def test_a_process_loads_only_what_its_start_needs(modules, spared):
    """There is one for each group: what it loads, each of hundreds loads, before anybody can use it."""
    code = "\n".join(f"import {CLUSTER}.{module}" for module in modules)
    assert not all_loaded(code) & spared


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Mesaging'"):
        _ = ray_messaging.Mesaging
    with pytest.raises(ImportError, match="Mesaging"):
        from ray_messaging import Mesaging  # noqa: F401


def test_classes_are_pickled_by_reference():
    public = [getattr(ray_messaging, name) for name in ray_messaging.__all__ if name not in {"errors", "rules"}]
    assert pickle.loads(pickle.dumps(public)) == public


RUN = """
import ray_messaging
from ray_messaging import rules

def person(me, inbox):
    me.send((me.id + 1) % 5, {"heard": len(inbox)})

result = ray_messaging.run(
    person, agents=5, until=3, groups=2, shared={"kept": [1]}, rules=[rules.BlackList([(0, 1)])], progress=False
)
assert result.fates == {"delivered": 12, "blocked": 3}, result
"""


def test_a_run_in_this_process_brings_neither_ray_nor_tables():
    assert not all_loaded(RUN) & {"ray", "pandas", "pyarrow", "duckdb", "networkx"}
