"""Foreign data among the dead letters or in their counters is counted and shown, and stops no operation."""

import pytest
from support.command_line import command
from support.contracts import LETTER_BYTES, take_in
from support.server_side import dead_letters_of, findings_of_mailboxes, keys_of

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
    return dead_letters_of(server, exp_id)


@pytest.fixture
def found(server, exp_id):
    """Return the health findings about dead letters."""

    async def found():
        (finding,) = [each for each in await findings_of_mailboxes(server, exp_id) if each.what == "dead letters"]
        return finding.level, finding.value

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


def listed(server, exp_id, what="list", *args):
    url = f"redis://:{server.password or ''}@{server.server}:{server.port}"
    return command("deadletters", what, exp_id, *args, "--redis", url)


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
    letter = (await client.xadd(keys_of(exp_id).dead, fields)).decode()
    whole = {"letters": 2, "bytes": before["bytes"] + weight(fields), "dropped": 0, "dropped_bytes": 0}
    assert letters.stats() == whole
    assert await found() == ("warning", "2")
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
    state = keys_of(exp_id).state(":dead")
    await client.hset(state, mapping=dict.fromkeys(["letters", "bytes", "dropped", "dropped_bytes"], value))
    assert letters.stats() == before
    assert await found() == ("warning", "1")
    assert "older ones" not in listed(server, exp_id)
    await client.hset(state, mapping=dict.fromkeys(["letters", "bytes", "dropped", "dropped_bytes"], value))
    await make_dead_letter()
    after = letters.stats()
    assert (after["letters"], after["bytes"], after["dropped"]) == (2, 2 * before["bytes"], 0)
    assert letters.drop(everything=True) == 2
    assert letters.stats() == dict.fromkeys(after, 0)


async def test_foreign_or_missing_letters_are_counted_against_the_limit(letters, client, opener, server, exp_id):
    keys = keys_of(exp_id)
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
