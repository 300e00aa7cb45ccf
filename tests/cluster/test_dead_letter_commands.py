"""Dead letters of a real experiment, in Python and on the command line."""

import json
import uuid

import pytest
import redis
from typer.testing import CliRunner

from ray_messaging import Messaging
from ray_messaging.addressing.server_keys import Keys
from ray_messaging.cli import app
from ray_messaging.cluster.handles.dead_letters import DeadLetters
from ray_messaging.errors import ConfigError, UnknownName

pytestmark = pytest.mark.long

GARBAGE = b"\x1b[31mno frame"


def ask(*args, code=0):
    """Run `ray-messaging deadletters ...`; return its output, for an expected failure its errors."""
    found = CliRunner().invoke(app, ["deadletters", *map(str, args)])
    assert found.exit_code == code, found.output
    return found.stderr if code else found.stdout


@pytest.fixture(scope="module")
def town(ray_cluster, tmp_path_factory):
    """Give an experiment with a log, whose health bad frames may harm, a group `west`, and a client of its server."""
    log_dir = tmp_path_factory.mktemp("dead") / "log"
    with Messaging.start(f"dead-{uuid.uuid4().hex[:8]}", log_dir=log_dir) as messaging:
        config = messaging.redis
        with redis.Redis(config.server, config.port, password=config.password) as client:
            yield messaging, messaging.create_group("west", range(10)), client


@pytest.fixture
def letters(town):
    """Give its dead letters; afterwards drop them."""
    found = town[0].dead_letters
    yield found
    found.drop(everything=True)


@pytest.fixture
def url(town):
    config = town[0].redis
    return f"redis://:{config.password}@{config.server}:{config.port}"


def make_dead_letters(town, name, agents, count):
    """Make a group, send to it from west, and remove it unread; return the messages' ids."""
    messaging, west, _ = town
    messaging.create_group(name, agents)
    targets = [agents[n % len(agents)] for n in range(count)]
    sent = west.send_columns([1] * count, targets, [{"content": f"number {n}"} for n in range(count)])
    messaging.remove_group(name)
    return [receipt.message_id for receipt in sent]


def write(town, mailbox, frame):
    """Write bytes into a mailbox by hand."""
    messaging, _, client = town
    keys = Keys(messaging.exp_id)
    client.xadd(keys.stream(f"{mailbox}:{client.hget(keys.state(mailbox), 'born').decode()}"), {"f": frame})


def test_unreadable_letters_are_marked(town, letters):
    west = town[1]
    write(town, "west", GARBAGE)
    receipt = west.send(1, 1, {"n": 1})
    assert [message.id for message in west.fetch_messages(timeout=60)] == [receipt.message_id]
    west.ack()
    (letter,) = letters
    assert (letter.readable, letter.rows, letter.frame) == (False, 0, GARBAGE)
    assert letters.list(limit=1) == [letters.get(letter.id)]
    assert town[0].stats()["dead_letters"]["letters"] == len(letters) == 1
    assert letters.to_pandas()[["mailbox", "rows"]].to_numpy().tolist() == [["west", 0]]
    with pytest.raises(ValueError, match="cannot be decoded"):
        letter.messages  # noqa: B018 - it raises
    assert "export it, or drop it" in letters.requeue(letter.id).left[letter.id]
    assert "not readable" in repr(letter)
    assert letters.drop(mailbox="nobody's") == 0
    assert letters.drop(mailbox="west") == 1
    with pytest.raises(UnknownName, match="requeued or dropped"):
        letters.get(letter.id)


def test_the_commands_show_requeue_and_drop(town, letters, url, tmp_path):
    messaging, west, _ = town
    exp_id = messaging.exp_id
    before = messaging.log.stats()["rows"]
    sent = make_dead_letters(town, "south", [300], 2)
    assert [message.id for letter in letters for message in letter.messages] == sent
    write(town, "west", GARBAGE)
    west.send(1, 1, {})
    west.fetch_messages(timeout=60)
    west.ack()
    readable, garbage = [json.loads(line) for line in ask("list", exp_id, "--json").splitlines()]
    assert (readable["mailbox"], readable["messages"], garbage["readable"]) == ("south", 2, False)
    table = ask("list", exp_id, "--limit", 2)
    assert "2 dead letters" in table
    assert "the mailbox was removed" in table
    assert "unreadable" in table
    assert "There may be more" in table
    assert "number 1" in ask("show", exp_id, readable["id"])
    whole = json.loads(ask("show", exp_id, readable["id"], "--json"))
    assert [found["payload"] for found in whole["content"]] == [{"content": "number 0"}, {"content": "number 1"}]
    exported = tmp_path / "frame"
    assert "\x1b" not in ask("show", exp_id, garbage["id"], "--export", exported)
    assert exported.read_bytes() == GARBAGE
    assert "exists already" in ask("show", exp_id, garbage["id"], "--export", exported, code=2)

    for say in ({}, {"everything": True, "mailbox": "west"}, {"ids": "west"}, {"ids": ["1-99999999999999999999"]}):
        for call in (letters.requeue, letters.drop):
            with pytest.raises(ConfigError):
                call(**say)
    assert len(letters) == 2
    told = ask("requeue", exp_id, readable["id"], garbage["id"], code=1)
    assert f"left: {readable['id']}: nobody listens" in told
    assert f"left: {garbage['id']}: it cannot be decoded" in told
    south = messaging.create_group("south", [300])
    done = json.loads(ask("requeue", exp_id, "--redis", url, "--mailbox", "south", "--json"))
    assert done == {"letters": 1, "messages": 2, "left": {}}
    assert [message.id for message in south.fetch_messages(timeout=60)] == sent
    assert messaging.log.stats()["rows"] - before == 3  # the log had them, and logs none twice
    south.ack()
    messaging.remove_group("south")
    assert ask("drop", exp_id, garbage["id"]) == "Deleted 1 letter.\n"
    assert "1 letter could not be found" in ask("drop", exp_id, garbage["id"], code=1)
    assert ask("list", exp_id).startswith("0 dead letters")


def test_bad_input_gets_an_error_of_one_line(town, letters, url):
    exp_id = town[0].exp_id
    for args, words in (
        (["list", "nowhere"], "no experiment 'nowhere' runs"),
        (["list", "nowhere", "--redis", url], "the server has no experiment 'nowhere'"),
        (["list", exp_id, "--redis", "redis://127.0.0.1:1"], "cannot reach the server at 127.0.0.1:1"),
        (["show", exp_id, "x"], "'x' is not the id of a dead letter"),
        (["show", exp_id, "1-1"], "there is no dead letter '1-1'"),
        (["requeue", exp_id], "say which dead letters"),
        (["drop", exp_id, "1-1", "--all"], "pass exactly one of"),
    ):
        error = ask(*args, code=2)
        assert error.startswith("error: ")
        assert words in error
        assert str(town[0].redis.password) not in error


async def test_dead_letters_work_inside_a_running_event_loop(town):
    messaging = town[0]
    assert len(DeadLetters(messaging.redis, messaging.exp_id).check()) == 0


def test_a_reset_deletes_dead_letters(ray_cluster, redis_config, exp_id):
    with Messaging.start(exp_id, redis=redis_config) as messaging:
        west = messaging.create_group("west", [1])
        west.send(1, 1, {})
        messaging.remove_group("west")
        assert len(messaging.dead_letters) == 1
    with Messaging.start(exp_id, redis=redis_config, on_existing="resume") as messaging:
        assert len(messaging.dead_letters) == 1
    with Messaging.start(exp_id, redis=redis_config, on_existing="reset") as messaging:
        assert messaging.dead_letters.stats() == {"letters": 0, "bytes": 0, "dropped": 0, "dropped_bytes": 0}
        messaging.shutdown(erase=True)


def test_dropping_all_resets_the_count_of_dropped_letters(town, letters):
    messaging, _, client = town
    client.hset(Keys(messaging.exp_id).state(":dead"), mapping={"dropped": 3, "dropped_bytes": 900})
    assert messaging.health().of("dead letters")[0].level == "critical"
    assert letters.drop(["1-1"]) == 0
    assert letters.stats()["dropped"] == 3
    letters.drop(everything=True)
    assert letters.stats() == {"letters": 0, "bytes": 0, "dropped": 0, "dropped_bytes": 0}
    assert messaging.health().of("dead letters")[0].level == "ok"
