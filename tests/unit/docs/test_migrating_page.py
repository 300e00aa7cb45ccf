"""Members of AgentSociety's and AgentScope's classes: each has a test in docs/migrating.md, and ours has it."""

import ast
import functools
import importlib
import inspect
import re

import pytest

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
# Heading in the docs: members, the page, our module, what else a `from module import *` of the seed brings.
SEEDS = {
    "AgentSociety on Redis": (REDIS, "redis-messager.md", "ray_messaging", {"Messager", "RedisConfig"}),
    "AgentSociety on MQTT": (MQTT, "mqtt-messager.md", "ray_messaging.compat.mqtt", {"Messager"}),
    "AgentScope's Msg": (MSG, "agentscope-msg.txt", "ray_messaging", set()),
}
MEMBER = re.compile(r"(?P<coroutine>async )?(?P<name>[\w.]+)(?P<arguments>\(.*\))?$")


def lines(members):
    return members.split("\n")[1:-1]


def arguments(signature, *, bound):
    """Write a signature as in the lists above: names and defaults."""
    found = list(signature.parameters.values())[bound:]
    return [(p.name, p.kind, p.default) for p in found if p.kind is not p.KEYWORD_ONLY]


def parsed(text):
    """Read arguments as the seeds write them, with or without types."""
    arguments_ = ast.parse(f"def f(self, {text.strip('()')}): pass".replace("self, )", "self)")).body[0].args
    return [arg.arg for arg in (*arguments_.posonlyargs, *arguments_.args)][1:], arguments_


def plain(name, text):
    """Write a member with its arguments and defaults, without types."""
    names, read = parsed(text)
    defaults = [ast.unparse(default) for default in read.defaults]
    written = names[: len(names) - len(defaults)]
    written += [f"{arg}={default}" for arg, default in zip(names[len(written) :], defaults, strict=True)]
    return f"{name}({', '.join([*written, *([f'**{read.kwarg.arg}'] if read.kwarg else [])])})"


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


def gaps(text, heading, members, root):
    """Return the errors of a table: missing or unknown members, missing tests."""
    table = table_of(text, heading)
    wrong = [f"{member} is not in the table" for member in lines(members) if member not in table]
    wrong += [f"{member} is no member" for member in table if member not in lines(members)]
    for member, tests in table.items():
        if not tests:
            wrong.append(f"{member} has no test")
        for test in tests:
            file, _, name = test.partition("::")
            path = root / file
            if not (file.startswith("tests/") and path.is_file() and name in names_of_tests(path)):
                wrong.append(f"{member}: there is no test {test}")
    return wrong


@pytest.fixture
def docs(request):
    path = request.config.rootpath / "docs" / "migrating.md"
    if not path.exists():
        pytest.skip("the docs are not part of this copy")
    return path.read_text()


@pytest.mark.parametrize("seed", SEEDS)
def test_each_member_has_a_test_that_is_there(seed, docs, request):
    assert gaps(docs, seed, SEEDS[seed][0], request.config.rootpath) == []


def test_a_gap_in_the_table_is_found(docs, request):
    heading, (members, *_) = next(iter(SEEDS.items()))
    row = next(line for line in docs.split("\n") if line.startswith("| `Messager.get_log_list()` |"))
    test = re.search(r"::(\w+)`", row)[1]
    for changed, expected in (
        (docs.replace(row + "\n", "", 1), "Messager.get_log_list() is not in the table"),
        (docs.replace(row, "| `Messager.get_log_list()` | soon |", 1), "Messager.get_log_list() has no test"),
        (docs.replace(row, row.replace(test, "test_of_nothing")), "Messager.get_log_list(): there is no test"),
        (docs.replace(row, row.replace("tests/", "nowhere/")), "Messager.get_log_list(): there is no test"),
        (docs.replace(row, f"{row}\n| `Messager.shout()` | `{test}` |", 1), "Messager.shout() is no member"),
    ):
        found = gaps(changed, heading, members, request.config.rootpath)
        assert [wrong.startswith(expected) for wrong in found[:1]] == [True], found


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
    members, _, module_name, exported = SEEDS[seed]
    module = importlib.import_module(module_name)
    assert [wrong for member in lines(members) for wrong in differences(module, member)] == []
    assert exported <= set(module.__all__)


def test_msgs_properties_can_be_set():
    from ray_messaging import Msg

    fields = [line.partition(".")[2] for line in lines(MSG) if re.fullmatch(r"Msg\.\w+", line)]
    assert len(fields) == 7
    assert all(getattr(Msg, field).fset is not None for field in fields)


def test_a_difference_is_found():
    import ray_messaging

    for member, expected in (
        ("Shouter()", "no Shouter"),
        ("Messager.shout()", "not there"),
        ("Messager.get_log_list", "no property"),
        ("Messager.init()", "not awaited"),
        ("async Messager.get_log_list()", "not awaited"),
        ("async Messager.send_message(channel, payload, from_id=None)", "takes"),
        ("async Messager.send_message(channel, payload, to_id=None, from_id=None)", "takes"),
        ("async Messager.send_message(channel, payload, from_id=0, to_id=None)", "takes"),
        ("Messager(config, exp_id)", "takes"),
        ("Msg(name, content, role, url=None, metadata=None, echo=False)", "takes"),
    ):
        found = differences(ray_messaging, member)
        assert [expected in wrong for wrong in found] == [True], (member, found)


# -- the pages --------------------------------------------------------------------------------------------------------


def members_of_page(text):
    """Return the members of AgentSociety's page."""
    found, kind = [], ""
    for what, member, is_async in re.findall(r"\{py:(\w+)\} (.+)\n(?:.*canonical.*\n)(:async:)?", text):
        name, bracket, rest = member.partition("(")
        if what == "class":
            kind, full = f"{name}.", name
        else:
            full = name if what == "data" else kind + name
        if name.startswith("_listen"):
            continue
        found.append(("async " if is_async else "") + (plain(full, bracket + rest) if bracket else full))
    return found


def members_of_msg(text):
    """Return the members of AgentScope's page."""
    found = []
    for name, signature, field in re.findall(
        r"^(?:(?:class|classmethod)? ?(\w+)(\(.*\)).*\[source\]|property (\w+): .*)$", text, re.MULTILINE
    ):
        full = name if name == "Msg" else f"Msg.{name or field}"
        found.append(full if field else plain(full, signature))
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_the_list_is_that_of_the_seeds_page(seed, request):
    members, page, *_ = SEEDS[seed]
    path = request.config.rootpath.parent / "shared" / "seeds" / page
    if not path.exists():
        pytest.skip(f"{path} is absent: the seeds' pages are not part of the repository")
    read = members_of_msg if path.suffix == ".txt" else members_of_page
    assert read(path.read_text()) == lines(members)
