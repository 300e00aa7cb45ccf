"""Each answer is lost once, as the server fills up, forgets its scripts or loses a key: every fate is true."""

import asyncio
import json
from collections import Counter
from contextlib import aclosing, suppress
from functools import partial

import pytest
import redis
from faults.proxy import Proxy
from support.patience import WAIT_S
from support.server_side import keys_of
from support.step_faults import commit_in_parts
from support.stepped import begin_steps

from ray_messaging import Messager, MessagingConfig, MessagingError
from ray_messaging.errors import OutcomeUnknown, StepAborted, TransitError
from ray_messaging.wire.frames import decode

SETTINGS = MessagingConfig(send_timeout_s=0.2)
STEPS = MessagingConfig(send_timeout_s=1.0)


def fill(client, _keys):
    """Leave the server without memory for a write."""
    client.config_set("maxmemory", "1mb")


def forget_scripts(client, _keys):
    client.script_flush()


def lose_mailbox(client, keys):
    client.delete(keys.state("group"))


def lose_sender(client, keys):
    client.delete(keys.sender("sender"))


def nothing(_client, _keys):
    """Lose the answer alone."""


class Faults:
    """A proxy that loses one piece, and what happens to the server at that moment."""

    def __init__(self, config, exp_id):
        self.keys = keys_of(exp_id)
        self.client = redis.Redis(config.server, config.port, password=config.password)
        self.proxy = Proxy(config)
        self.met = False  # whether the piece was lost

    def __enter__(self):
        self.proxy.__enter__()
        return self

    def __exit__(self, *_):
        self.proxy.__exit__()
        self.client.close()

    def lose(self, nth, *, up, then):
        def lost():
            self.met = True
            then(self.client, self.keys)

        self.proxy.lose(nth, up=up, then=lost)

    def heal(self):
        """Lose nothing more; the server has memory again."""
        self.proxy.spare()
        self.client.config_set("maxmemory", "0")

    def written(self, born):
        """Return how often each number is in the mailbox."""
        entries = self.client.xrange(self.keys.stream(f"group:{born}"))
        lines = [line for _, fields in entries for line in decode(fields[b"f"]).lines.by_row]
        return Counter(json.loads(line)["n"] for line in lines)


async def one(sender, channel, fates, **more):
    number = len(fates)
    await fate_of(fates, [number], sender.send_message(channel, {"n": number, **more}, from_id=3))


async def many(sender, _channel, fates):
    numbers = range(len(fates), len(fates) + 5)
    await fate_of(fates, numbers, sender.send_columns([3] * 5, [1] * 5, [{"n": n} for n in numbers]))


async def transaction(sender, channel, fates):
    numbers = len(fates), len(fates) + 1

    async def commit():
        async with sender.transaction() as tx:
            for n in numbers:
                tx.send_message(channel, {"n": n}, 3)

    await fate_of(fates, numbers, commit())


async def fate_of(fates, numbers, sending):
    """Note how often messages may be in the mailbox."""
    allowed = {0}
    try:
        async with asyncio.timeout(WAIT_S):
            await sending
        allowed = {1}
    except OutcomeUnknown:
        allowed = {0, 1}
    except MessagingError:
        pass
    fates |= dict.fromkeys(numbers, allowed)


SENDS = (one, many, partial(one, text="x" * 200_000), transaction, one)


async def insist(call):
    """Repeat a call until it succeeds: on a busy machine the timeout may be too short. Raises Fenced."""
    async with asyncio.timeout(WAIT_S):
        while True:
            with suppress(TransitError):
                return await call()


def cases(usual, *others):
    """Return parameters for what happens to the server, and to a request in place of an answer; most take long."""
    return [
        pytest.param(
            then,
            up,
            id=f"{then.__name__}, {'request' if up else 'answer'} lost",
            marks=() if then is usual and not up else pytest.mark.long,
        )
        for then in (usual, *others)
        for up in (False, True)
    ]


@pytest.mark.parametrize(("then", "up"), cases(lose_mailbox, nothing, fill, forget_scripts, lose_sender))
async def test_each_send_ends_with_a_true_fate(redis_process, exp_id, then, up):
    for number in range(len(SENDS)):
        await lose_each(partial(sends, redis_process.config, f"{exp_id}-{number}", number, then, up))


async def lose_each(run):
    """Repeat a run that loses its nth piece and returns whether it had so many; it must have one."""
    nth = 1
    while await run(nth):
        nth += 1
    assert nth > 1


async def sends(config, exp_id, number, then, up, nth):
    """Send in each way up to one that loses its nth piece, and once more; return whether it was lost."""
    exp_id = f"{exp_id}-{nth}"
    with Faults(config, exp_id) as faults:
        async with (
            Messager(config, exp_id, name="group", settings=SETTINGS) as group,
            Messager(config, exp_id, name="other", settings=SETTINGS) as bystander,
            Messager(faults.proxy.config, exp_id, name="sender", settings=SETTINGS) as sender,
        ):
            for messager, agent in ((group, 1), (bystander, 2), (sender, 3)):
                await insist(partial(messager.host_agents, [agent], ["agent-chat"]))
            born = int(faults.client.hget(faults.keys.state("group"), "born"))
            channel, fates = sender.get_agent_chat_channel(1), {}
            for send in SENDS[:number]:
                await send(sender, channel, fates)
            faults.lose(nth, up=up, then=then)
            await SENDS[number](sender, channel, fates)
            faults.heal()
            if then is not lose_sender:  # else it is fenced
                other = sender.get_agent_chat_channel(2)
                receipt = await insist(lambda: sender.send_message(other, {"n": 0}, from_id=3))
                assert receipt.fate == "delivered"
            written = faults.written(born)
    assert {n: written[n] for n, allowed in fates.items() if written[n] not in allowed} == {}, fates
    return faults.met


@pytest.mark.parametrize(("then", "up"), cases(fill, nothing, forget_scripts))
@pytest.mark.parametrize("in_parts", [False, True], ids=["one call", "parts"])
async def test_each_step_is_committed_once(redis_process, exp_id, then, up, in_parts, monkeypatch):
    """Where the server is full at the repetition of a commit that it has, the step is committed all the same."""
    if in_parts:
        commit_in_parts(monkeypatch)
    for number in range(-1, 4):
        await lose_each(partial(steps, redis_process.config, f"{exp_id}-{number + 1}", number, then, up))


async def steps(config, exp_id, number, then, up, nth):
    """Run four steps and lose the nth piece of one (-1: of the start); return whether it was lost."""
    exp_id = f"{exp_id}-{nth}"
    sent, heard, aborted = [], [], []
    with Faults(config, exp_id) as faults:
        async with Messager(faults.proxy.config, exp_id, name="group", settings=STEPS) as group:
            await begin_steps(group, seed=7, groups=1)
            await group.host_agents([1, 2], ["agent-chat"])
            if number < 0:
                faults.lose(nth, up=up, then=then)
            async with asyncio.timeout(WAIT_S):
                while len(heard) < 4:
                    try:
                        async with aclosing(group.steps(until=4)) as found:
                            async for step in found:
                                del heard[step.number :], sent[step.number :]
                                heard.append([payload["n"] for payload in step.messages.payloads])
                                faults.heal()
                                if step.number == number and not faults.met:
                                    faults.lose(nth, up=up, then=then)
                                sent.append([100 * step.number + n for n in range(3)])
                                step.send_columns([1] * 3, [2] * 3, [{"n": n} for n in sent[-1]])
                    except StepAborted as error:
                        aborted.append(error)
                        faults.heal()
            faults.heal()
    assert heard == [[], *sent[:3]]
    if not (then is fill and up):  # a request that was lost meets the full server
        assert not aborted
    return faults.met
