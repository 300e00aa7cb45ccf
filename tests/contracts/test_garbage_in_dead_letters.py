"""Foreign data among the dead letters or in their counters is counted and shown, and stops no operation."""

import pytest
from support.contracts import LETTER_BYTES, take_in
from typer.testing import CliRunner

from ray_messaging.addressing.channels import Keys
from ray_messaging.cli import app
from ray_messaging.cluster.handles.dead_letters import DeadLetters
from ray_messaging.observability.health.mailbox_checks import check_kept
from ray_messaging.transports.server_probe import ask_server

pytestmark = pytest.mark.one_server("it writes by hand what each server keeps")

NO_COUNTS = ["-1", "1.5", "\xff", "9" * 400]
ODD_LETTERS = {
    "other fields": {"x": "y"},
    "no frame": {"mailbox": "m", "reason": "r"},
    "an empty frame": {"f": b""},
    "no numbers": {"row": "-1", "born": "-5", "at": "-1", "entry": "x", "f": b"garbage"},
    "numbers of other scripts": {"row": "²", "born": "²", "at": "²", "entry": "²-²", "f": b"garbage"},
    "numbers that are too long": {
        "row": "9" * 400,
        "born": "9" * 5000,
        "at": "9" * 400,
        "entry": "9" * 5000,
        "f": b"g",
    },
    "no text": {"mailbox": b"\xff\x1b[31m", "reason": b"\xff\x00", "exclusive": b"\xff", "f": b"\x00" * 5000},
}


@pytest.fixture
def client(store):
    return store.client


@pytest.fixture
def letters(server, exp_id):
    return DeadLetters(server, exp_id)


@pytest.fixture
def found(server, exp_id):
    """Return the health findings about dead letters."""

    def found():
        (finding,) = [each for each in check_kept(ask_server(server, exp_id).kept) if each.what == "dead letters"]
        return finding

    return found


@pytest.fixture
def make_dead_letter(opener, server):
    """Return a function that leaves an unread message in a removed mailbox."""

    async def make_dead_letter():
        sender, receiver = await opener(server), await opener(server, host=[1])
        await sender.send_message(sender.get_agent_chat_channel(1), {})
        await take_in(receiver, 1)
        await receiver.close()

    return make_dead_letter


def listed(server, exp_id, command="list", *args):
    url = f"redis://:{server.password or ''}@{server.server}:{server.port}"
    told = CliRunner().invoke(app, ["deadletters", command, exp_id, *args, "--redis", url])
    assert told.exit_code == 0, told.output
    return told.output


def weight(fields):
    return len(fields.get("f", b"")) + LETTER_BYTES


@pytest.mark.parametrize("name", ODD_LETTERS)
async def test_a_foreign_letter_is_counted_listed_shown_and_dropped(
    name, letters, client, server, exp_id, make_dead_letter, found
):
    await make_dead_letter()
    before = letters.stats()
    assert (before["letters"], letters.list()[0].rows) == (1, 1)
    fields = ODD_LETTERS[name]
    letter = (await client.xadd(Keys(exp_id).dead, fields)).decode()
    whole = {"letters": 2, "bytes": before["bytes"] + weight(fields), "dropped": 0, "dropped_bytes": 0}
    assert letters.stats() == whole
    assert (found().level, found().value) == ("warning", "2")
    assert listed(server, exp_id).startswith("2 dead letters, ")
    assert "older ones" not in listed(server, exp_id)
    assert "cannot be decoded" in listed(server, exp_id, "show", letter)
    assert "\x1b" not in listed(server, exp_id, "show", letter)
    assert (letters.get(letter).readable, len(letters.to_pandas())) == (False, 2)
    assert "cannot be decoded" in letters.requeue([letter]).left[letter]
    assert letters.drop([letter, "1-1", letter]) == 1
    assert letters.stats() == before


@pytest.mark.parametrize("value", NO_COUNTS)
async def test_damaged_counters_are_recomputed_and_stop_no_dead_letter(
    value, letters, client, server, exp_id, make_dead_letter, found
):
    await make_dead_letter()
    before = letters.stats()
    state = Keys(exp_id).state(":dead")
    await client.hset(state, mapping=dict.fromkeys(["letters", "bytes", "dropped", "dropped_bytes"], value))
    assert letters.stats() == before
    assert (found().level, found().value) == ("warning", "1")
    assert "older ones" not in listed(server, exp_id)
    await client.hset(state, mapping=dict.fromkeys(["letters", "bytes", "dropped", "dropped_bytes"], value))
    await make_dead_letter()
    after = letters.stats()
    assert (after["letters"], after["bytes"], after["dropped"]) == (2, 2 * before["bytes"], 0)
    assert letters.drop(everything=True) == 2
    assert letters.stats() == dict.fromkeys(after, 0)


async def test_foreign_or_missing_letters_are_counted_against_the_limit(letters, client, opener, server, exp_id):
    keys = Keys(exp_id)
    for _ in range(20):
        await client.xadd(keys.dead, {"f": b"x" * 1000})
    sender, receiver = await opener(server), await opener(server, host=[1], dead_bytes=10_000)
    await sender.send_message(sender.get_agent_chat_channel(1), {})
    await take_in(receiver, 1)
    await receiver.close()
    stats = letters.stats()
    assert stats["bytes"] <= 10_000 < stats["bytes"] + 1000 + LETTER_BYTES
    assert (stats["letters"] + stats["dropped"], letters.list()[-1].rows) == (21, 1)
    await client.xtrim(keys.dead, maxlen=1)
    assert (letters.stats()["letters"], letters.stats()["bytes"]) == (1, len(letters.list()[0].frame) + LETTER_BYTES)
