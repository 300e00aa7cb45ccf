"""Faults of one of several servers: killed under load, or out of the interceptor's reach while its rules change."""

import asyncio
import itertools

import pytest
from faults.proxy import Proxy
from support.contracts import WAIT_S, client_of, until
from support.delegation import Actor, InterceptorEpoch

from ray_messaging import MessagingError, OutcomeUnknown, Outgoing, TransitError
from ray_messaging.addressing.channels import Keys
from ray_messaging.common.backoff import RetryPolicy
from ray_messaging.interception.client import delegated_rules
from ray_messaging.interception.rules import BlackList
from ray_messaging.interception.server import rule_delegation
from ray_messaging.wire.frames import decode

AGENTS = (1, 2, 3)  # each in a group of its own, on shard 1, 2 and 0


@pytest.fixture
def server(own_shards):
    return own_shards


class Traffic:
    """A sender that writes numbered messages to all groups until it is told to stop, and their fates."""

    def __init__(self, sender, by):
        self.sender, self.by = sender, by
        self.acknowledged, self.unknown = set(), set()
        self.rounds = self.failures = 0

    async def run(self, stop):
        for number in itertools.count():
            if stop.is_set():
                return
            outgoing = [Outgoing.to_agent(agent, {"n": number}, from_id=self.by) for agent in AGENTS]
            try:
                receipts = list(await self.sender.send_messages(outgoing))
            except TransitError as error:
                receipts = error.receipts
                self.failures += 1
                if isinstance(error, OutcomeUnknown):
                    self.unknown |= {
                        (self.by, number, agent)
                        for agent, receipt in zip(AGENTS, receipts, strict=True)
                        if receipt is None
                    }
            for agent, receipt in zip(AGENTS, receipts, strict=True):
                if receipt is not None:
                    assert receipt.fate == "delivered"
                    self.acknowledged.add((self.by, number, agent))
            self.rounds += 1


async def read(host, found):
    """Fetch, and keep the numbers, until this is cancelled."""
    while True:
        try:
            messages = await host.fetch_messages(timeout=0.2)
            found.extend((message.from_id, message.payload["n"], message.to_id) for message in messages)
        except TransitError:
            await asyncio.sleep(0)


@pytest.mark.long
@pytest.mark.parametrize("patience_s", [0.3, 20.0], ids=["impatient", "patient"])
@pytest.mark.parametrize("victim", [0, 1, 2])
async def test_a_shard_that_is_killed_under_load_loses_and_doubles_nothing(
    processes, server, opener, victim, patience_s
):
    hosts = [await opener(server, name=f"group-{agent}", host=[agent]) for agent in AGENTS]
    senders = [await opener(server, name=f"sender-{n}", send_timeout_s=patience_s) for n in range(3)]
    flows, stop = [Traffic(sender, 100 + n) for n, sender in enumerate(senders)], asyncio.Event()
    found = []
    reading = [asyncio.create_task(read(host, found)) for host in hosts]
    running = [asyncio.create_task(flow.run(stop)) for flow in flows]

    async def moved_on():
        before = [flow.rounds for flow in flows]
        await until(lambda: asyncio.sleep(0, all(f.rounds > b + 3 for f, b in zip(flows, before, strict=True))))

    for _ in range(3):
        await moved_on()
        for flow in flows:
            flow.failures = 0
        processes[victim].kill()
        if patience_s < 1:  # each has a send in the outage
            await until(lambda: asyncio.sleep(0, all(flow.failures for flow in flows)))
        await asyncio.to_thread(processes[victim].start)
        await moved_on()
    stop.set()
    await asyncio.gather(*running)
    acknowledged = set().union(*(flow.acknowledged for flow in flows))
    unknown = set().union(*(flow.unknown for flow in flows))
    await until(lambda: asyncio.sleep(0, acknowledged <= set(found)))
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)
    assert len(found) == len(set(found))
    assert set(found) <= acknowledged | unknown
    for by, agent in itertools.product({flow.by for flow in flows}, AGENTS):
        order = [number for sender, number, to in found if (sender, to) == (by, agent)]
        assert order == sorted(order)
    for messager in (*senders, *hosts):  # before their servers
        await messager.close()


# -- rules ------------------------------------------------------------------------------------------------------------


async def mailbox_numbers(config, exp_id, mailbox):
    """Return the numbers of the messages that are in a mailbox."""
    keys = Keys(exp_id)
    async with client_of(config) as client:
        born = (await client.hget(keys.state(mailbox), "born")).decode()
        entries = await client.xrange(keys.stream(f"{mailbox}:{born}"))
    batches = [decode(fields[b"f"]) for _, fields in entries]
    return [int(row[5:-1]) for batch in batches for row in map(batch.lines.row, range(len(batch)))]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("changes", "cut_each"), [(16, 4), (1_000, 40)])
async def test_no_message_that_a_returned_change_forbids_is_in_a_mailbox(
    processes, server, opener, exp_id, monkeypatch, changes, cut_each
):
    """Some changes are made while shard 1 is out of the interceptor's reach; senders write to it all the time."""
    monkeypatch.setattr(rule_delegation, "CALM_S", 0.0)
    monkeypatch.setattr(delegated_rules, "LEASE_S", 60.0)
    monkeypatch.setattr(delegated_rules, "SNAPSHOT_RETRY", RetryPolicy(0.0, 0.0))
    host = await opener(server, name="group-1", host=[1], mailbox_messages=10**7)
    assert host.engine.transport.home("group-1") == 1
    with Proxy(server.servers[1]) as proxy:
        servers = (server.servers[0], proxy.config, server.servers[2])
        epoch = InterceptorEpoch(server.model_copy(update={"servers": servers}), exp_id)
        actor = await Actor(epoch, exp_id).begin(BlackList([(-1, None)]))
        senders = [await opener(server, actor, name=f"sender-{n}") for n in range(2)]
        numbers, forbidden, stop = itertools.count(), [], asyncio.Event()
        ban = 0  # the number of the change that has returned; 0: none is in force

        async def flood(sender):
            while not stop.is_set():
                number, before = next(numbers), ban
                await sender.send_messages([Outgoing.to_agent(1, {"n": number}, from_id=7)])
                if before and ban == before:  # from before it was sent until its fate was known
                    forbidden.append(number)

        flooding = [asyncio.create_task(flood(sender)) for sender in senders]

        async def delegated():
            return all(sender.stats()["delegated"] > before[sender] for sender in senders)

        waited = 0
        for change in range(changes):
            if change % 2:
                ban = 0
                await actor.interceptor.change(lambda: actor.interceptor.black_list.remove({(7, 1)}))
                before = {sender: sender.stats()["delegated"] for sender in senders}
                await until(delegated)
                continue
            changing = actor.interceptor.change(lambda: actor.interceptor.black_list.add({(7, 1)}))
            if change % cut_each:
                await changing
            else:
                proxy.black_hole = True
                proxy.cut()
                task = asyncio.create_task(changing)
                sent = next(numbers)
                await until(lambda sent=sent: asyncio.sleep(0, next(numbers) > sent + 20))
                waited += not task.done()
                proxy.black_hole = False
                proxy.cut()
                async with asyncio.timeout(WAIT_S):
                    await task
            ban = change + 1
            sent = len(forbidden)
            await until(lambda sent=sent: asyncio.sleep(0, len(forbidden) > sent + 4))
        stop.set()
        await asyncio.gather(*flooding)
        there = set(await mailbox_numbers(server.servers[1], exp_id, "group-1"))
        assert waited  # a change did not return while a shard might still pass what it forbids
        assert there
        assert not there & set(forbidden)
        for messager in (*senders, host):
            await messager.close()
        await actor.close()
        await epoch.close()


async def test_a_change_waits_for_a_shard_that_is_away_and_then_fails(processes, server, exp_id, opener):
    """It is in force on the others; nothing tells that it is on the one that is away."""
    await opener(server, name="group-1", host=[1])
    epoch = InterceptorEpoch(server, exp_id)
    taken = await epoch.take()
    for shard in epoch.shards.transport.shards:
        shard.link.patience_s = 0.2
    processes[1].kill()
    with pytest.raises(MessagingError, match=str(server.servers[1].port)):
        await epoch.advance_delegation(taken, 2**62)
    processes[1].start()
    assert await epoch.advance_delegation(taken, 2**62 + 1)
    for process in processes:
        assert process.client().hget(Keys(exp_id).meta, "standing") == b"%d" % (2**62 + 1)
    await epoch.close()
