"""A Redis user with exactly the rights of docs/security.md, and users without one of them."""

import asyncio
import re
from pathlib import Path

import pytest
from redis.exceptions import ResponseError
from support.cluster import wait_for
from support.patience import WAIT_S
from support.servers import PASSWORD, RedisProcess

import ray_messaging
from ray_messaging import Messager, Messaging, MessagingConfig, rules
from ray_messaging.errors import MessagingError
from ray_messaging.observability.health.redis_checks import check_server
from ray_messaging.transports.connection.rights import SAMPLES, right_of
from ray_messaging.transports.server_probe import ask_server

DOC = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
DOCUMENTED = re.search(r"<!-- acl.*?```\nuser society on >PASSWORD (.*?)\n```", DOC, re.DOTALL)[1].split()
NEEDED_BY_SCRIPTS = {"+evalsha", "+xadd", "+hget"}
COMMANDS = [right[1:] for right in DOCUMENTED if right.startswith("+")]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with RedisProcess(tmp_path_factory.mktemp("acl-redis"), appendonly="no") as process:
        yield process


@pytest.fixture
def user(server, exp_id):
    """Return a function that makes a user for this experiment, and returns how to connect as that user."""
    client = server.client()

    def make(*more, but=()):
        but = set(but)
        rights = [right.replace("society-7", exp_id) for right in DOCUMENTED if right not in but]
        name = f"user-{exp_id}"
        client.execute_command("ACL", "SETUSER", name, "reset", "on", f">{PASSWORD}", *rights, *more)
        return server.config.model_copy(update={"username": name, "timeout": 5.0})

    yield make
    client.execute_command("ACL", "DELUSER", f"user-{exp_id}")
    client.close()


@pytest.mark.long
def test_an_experiment_needs_only_the_documented_rights(ray_cluster, server, user, exp_id, tmp_path):
    client = server.client()
    client.execute_command("ACL", "LOG", "RESET")
    config = user()
    limits = [rules.BlackList([(1, 3)]), rules.RateLimit(1000)]
    with Messaging.start(exp_id, redis=config, rules=limits, log_dir=tmp_path / "log") as messaging:
        west, east = messaging.create_group("west", [1, 2]), messaging.create_group("east", [3, 4])
        fates = [west.send(1, 4, {"n": 1}).fate, west.send(1, 3, {"n": 2}).fate, west.send(2, 99, {"n": 3}).fate]
        assert fates == ["delivered", "blocked", "undeliverable"]
        assert client.publish(f"exps:{exp_id}:agents:3:agent-chat", b'{"n":4}') == 1
        found = []
        while len(found) < 2:
            found += [message.payload["n"] for message in east.fetch_messages(timeout=60)]
        east.ack()
        assert sorted(found) == [1, 4]
        messaging.stats()
        assert wait_for(lambda: len(messaging.log.query()) == 3, "the log")
    with Messaging.start(exp_id, redis=config, on_existing="reset"):
        pass
    refusals = {
        (fields["reason"], fields["object"])
        for entry in client.execute_command("ACL", "LOG")
        for fields in [{key.decode(): value for key, value in zip(entry[::2], entry[1::2], strict=True)}]
    }
    # Managed servers forbid CONFIG, and we do not need it; redis-py sends its name if it may.
    assert {what for _, what in refusals} <= {b"config|get", b"client|setinfo"}
    client.close()


def test_all_commands_that_we_run_are_documented():
    package = Path(ray_messaging.__file__).parent / "transports" / "lua"
    lua = "".join(path.read_text() for path in package.rglob("*.lua"))
    # Not those by which we administer embedded servers, which are our own.
    files = [path for path in package.parents[1].rglob("*.py") if "embedded" not in path.parts]
    python = "".join(path.read_text() for path in files)
    ran = re.findall(r"redis\.p?call\(\s*'(\w+)'", lua) + re.findall(r"command\(\s*\"([A-Z]+)\"", python)
    documented = {command.partition("|")[0] for command in COMMANDS}
    assert {command.lower() for command in ran} <= documented
    assert len(ran) > 50


def test_all_rights_that_we_need_are_examined():
    optional = {"exec", "multi", "xgroup|create", "xgroup|destroy", "xinfo|groups"}
    assert {name.lower() for name, *_ in SAMPLES} == {name.partition("|")[0] for name in {*COMMANDS} - optional}


def test_a_health_check_needs_only_the_documented_rights_and_names_all_that_lack(user, exp_id):
    for lacking in ([], ["+get", "+xadd"]):
        config = user(but=lacking)
        for facts in (ask_server(config, exp_id), ask_server(config, space=exp_id)):
            said = [finding.value for finding in check_server(facts) if finding.what == "server rights"]
            assert (facts.error, sorted(facts.lacking)) == ("", lacking)
            assert said == ([f"the server's user lacks the rights {' '.join(facts.lacking)}"] if lacking else [])


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("User u has no permissions to run the 'config|get' command", "+config|get"),  # Valkey
        (
            "ACL failure in script: User u has no permissions to run the 'xadd' command script: on @user_script:3.",
            "+xadd",
        ),
        ("The user executing the script can't run this command or subcommand", None),
        (
            f"The user executing the script can't run this command or subcommand script: {'0' * 40}, on @user_script:1",
            None,
        ),
        ("this user has no permissions to access one of the keys used as arguments", None),
    ],
)
def test_a_right_is_named_only_where_the_server_says_it(text, right):
    assert right_of(ResponseError(text)) == right


async def journey(exp_id, config):
    """Send and receive by every call; each acknowledged message must arrive, or an error must be reported."""
    settings = MessagingConfig(send_timeout_s=3.0)
    async with (
        Messager(config, exp_id, name="b", settings=settings) as receiver,
        Messager(config, exp_id, settings=settings) as sender,
    ):
        await receiver.subscribe_and_start_listening([f"exps:{exp_id}:news:*"])
        await receiver.host_agents([2], ["agent-chat"])
        receipts = [await sender.send_message(sender.get_agent_chat_channel(to), {"n": to}, 1, to) for to in (2, 3)]
        assert [receipt.fate for receipt in receipts] == ["delivered", "undeliverable"]
        assert [message.payload for message in await receiver.fetch_messages(timeout=60)] == [{"n": 2}]
        await receiver.ack()


@pytest.mark.parametrize("lacking", [None, *(right for right in DOCUMENTED if right[0] in "+&~")])
async def test_messagers_need_only_the_documented_rights_and_report_one_that_is_missing(user, exp_id, lacking):
    config = user(f"&exps:{exp_id}:news:*", but=[lacking and lacking.replace("society-7", exp_id), lacking])
    try:
        async with asyncio.timeout(WAIT_S):
            await journey(exp_id, config)
    except MessagingError as error:
        assert lacking is not None
        said = f"{error} {error.__cause__}"
        assert re.search(r"lacks (a|the) right.*: docs/security\.md", said)
        assert f"lacks the right {lacking}: docs" in said or lacking not in NEEDED_BY_SCRIPTS
        assert PASSWORD not in said
    else:  # some rights are for rules and the log
        assert lacking not in NEEDED_BY_SCRIPTS
