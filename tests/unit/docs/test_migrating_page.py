"""Members of AgentSociety's and AgentScope's classes: each has a test in docs/migrating.md, and ours has it."""

import ast
import functools
import importlib
import inspect
import re

import pytest
from support.doc_pages import ROOT

# As the pages have them; without _listen_for_messages, which is private there.
REDIS = """
__all__
RedisConfig(**data)
RedisConfig.server
RedisConfig.port
RedisConfig.password
RedisConfig.db
RedisConfig.timeout
Messager(config, exp_id, message_interceptor=None)
Messager.message_interceptor
Messager.get_log_list()
Messager.clear_log_list()
Messager.set_message_interceptor(message_interceptor)
async Messager.init()
async Messager.close()
async Messager.subscribe_and_start_listening(channels)
async Messager.fetch_messages()
async Messager.send_message(channel, payload, from_id=None, to_id=None)
Messager.get_subtopic_channel(agent_id, subtopic)
Messager.get_user_survey_channel(agent_id)
Messager.get_user_chat_channel(agent_id)
Messager.get_agent_chat_channel(agent_id)
Messager.get_user_payback_channel()
"""
MQTT = """
__all__
logger
Messager(hostname, port=1883, username=None, password=None, timeout=60, message_interceptor=None)
Messager.message_interceptor
Messager.get_log_list()
Messager.clear_log_list()
Messager.set_message_interceptor(message_interceptor)
async Messager.__aexit__(exc_type, exc_value, traceback)
async Messager.ping()
async Messager.connect()
async Messager.disconnect()
async Messager.is_connected()
async Messager.subscribe(topics, agents)
async Messager.receive_messages()
async Messager.fetch_messages()
async Messager.send_message(topic, payload, from_uuid=None, to_uuid=None)
async Messager.start_listening()
async Messager.stop()
"""
MSG = """
Msg(name, content, role, url=None, metadata=None, echo=False, **kwargs)
Msg.formatted_str(colored=False)
Msg.from_dict(serialized_dict)
Msg.to_dict()
Msg.content
Msg.id
Msg.metadata
Msg.name
Msg.role
Msg.timestamp
Msg.url
"""
# Heading in the docs: members, our module, what else a `from module import *` of the seed brings.
SEEDS = {
    "AgentSociety on Redis": (REDIS, "ray_messaging", {"Messager", "RedisConfig"}),
    "AgentSociety on MQTT": (MQTT, "ray_messaging.compat.mqtt", {"Messager"}),
    "AgentScope's Msg": (MSG, "ray_messaging", set()),
}
MEMBER = re.compile(r"(?P<coroutine>async )?(?P<name>[\w.]+)(?P<arguments>\(.*\))?$")


def lines(members):
    return members.split("\n")[1:-1]


def arguments(signature, *, bound):
    """Write a signature as in the lists above: names and defaults."""
    found = list(signature.parameters.values())[bound:]
    return [(p.name, p.kind, p.default) for p in found if p.kind is not p.KEYWORD_ONLY]


# -- the table --------------------------------------------------------------------------------------------------------


def table_of(text, heading):
    """Return the rows of the table under a heading: member, tests."""
    section = re.search(rf"^### {re.escape(heading)}: members\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None, f"docs/migrating.md has no heading '### {heading}: members'"
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", section[1], re.MULTILINE)
    return {member: re.findall(r"`([^`]+)`", tests) for member, tests in rows}


@functools.cache
def names_of_tests(path):
    """Return the names of a file's tests."""
    tree = ast.parse(path.read_text())
    found = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {name for name in found if name.startswith("test")}


def gaps(text, heading, members):
    """Return the errors of a table: missing or unknown members, missing tests."""
    table = table_of(text, heading)
    wrong = [f"{member} is not in the table" for member in lines(members) if member not in table]
    wrong += [f"{member} is no member" for member in table if member not in lines(members)]
    for member, tests in table.items():
        if not tests:
            wrong.append(f"{member} has no test")
        for test in tests:
            file, _, name = test.partition("::")
            path = ROOT / file
            if not (file.startswith("tests/") and path.is_file() and name in names_of_tests(path)):
                wrong.append(f"{member}: there is no test {test}")
    return wrong


@pytest.mark.parametrize("seed", SEEDS)
def test_each_member_has_a_test_that_is_there(seed):
    assert gaps((ROOT / "docs" / "migrating.md").read_text(), seed, SEEDS[seed][0]) == []


# -- the classes ------------------------------------------------------------------------------------------------------


def differences(module, member):
    """Return the differences of our member from theirs: missing, other arguments, not awaited."""
    read = MEMBER.match(member)
    class_name, _, attribute = read["name"].partition(".")
    kind = getattr(module, class_name, None)
    if kind is None:
        return [f"{member}: no {class_name}"]
    if not attribute:
        return [] if read["arguments"] is None else taken(member, kind, read["arguments"], bound=0)
    if attribute in getattr(kind, "model_fields", {}):
        return []
    found = inspect.getattr_static(kind, attribute, None)
    if found is None:
        return [f"{member}: not there"]
    if read["arguments"] is None:
        return [] if isinstance(found, property) else [f"{member}: no property"]
    function = getattr(found, "__func__", found)
    wrong = taken(member, function, read["arguments"], bound=1)
    if inspect.iscoroutinefunction(function) != (read["coroutine"] is not None):
        wrong.append(f"{member}: not awaited as there")
    return wrong


def taken(member, function, wanted, *, bound):
    """Return how the arguments differ; ours may take more, by keyword and with a default."""
    if wanted == "(**data)":  # pydantic's
        return []
    scope = {}
    exec(f"def theirs(self, {wanted[1:]}: pass".replace("self, )", "self)"), scope)
    theirs = arguments(inspect.signature(scope["theirs"]), bound=1)
    signature = inspect.signature(function)
    wrong = [] if arguments(signature, bound=bound) == theirs else [f"{member}: takes {signature}"]
    more = [p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    return wrong + [f"{member}: demands {p.name}" for p in more]


@pytest.mark.parametrize("seed", SEEDS)
def test_each_member_is_on_our_classes_with_the_same_signature(seed):
    members, module_name, exported = SEEDS[seed]
    module = importlib.import_module(module_name)
    assert [wrong for member in lines(members) for wrong in differences(module, member)] == []
    assert exported <= set(module.__all__)


def test_msgs_properties_can_be_set():
    from ray_messaging import Msg

    fields = [line.partition(".")[2] for line in lines(MSG) if re.fullmatch(r"Msg\.\w+", line)]
    assert len(fields) == 7
    assert all(getattr(Msg, field).fset is not None for field in fields)
