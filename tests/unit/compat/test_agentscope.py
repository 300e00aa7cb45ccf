"""AgentScope's message bus on our server: its own tests, and what it lacks, as the life of a dead drainer's items."""

import asyncio
import importlib.util
import os
import pickle
import subprocess
import sys
import types
import unittest
import warnings
from contextlib import suppress
from pathlib import Path

import pytest
from support.contracts import until
from support.doc_pages import run_page

pytest.importorskip("agentscope.app.message_bus", reason="AgentScope is not here: pip install --group agentscope")

from ray_messaging.compat import agentscope
from ray_messaging.compat.agentscope import RayMessageBus
from ray_messaging.errors import Closed

# AgentScope's sdist lacks the tests of its bus: they are in its repository.
OWN_TESTS = Path(os.environ.get("AGENTSCOPE_TESTS", "absent"))


@pytest.fixture
async def bus(local):
    async with RayMessageBus(local) as opened:
        yield opened


class Store:
    """What AgentScope's tests want of fakeredis, on a server of ours."""

    def __init__(self, server, **options):
        self.bus = RayMessageBus(server, f"bus-{os.urandom(4).hex()}")

    async def ttl(self, registry):
        return await self.bus._open().command("TTL", f"{self.bus._prefix}r:{registry}")

    async def aclose(self):
        pass


@pytest.mark.parametrize("name", ["in_memory_message_bus_test", "service_message_bus_test"])
def test_agentscopes_own_tests(name, local, monkeypatch):
    path = OWN_TESTS / f"{name}.py"
    if not path.is_file():
        pytest.skip("set AGENTSCOPE_TESTS to the folder tests of github.com/agentscope-ai/agentscope")
    fake = types.ModuleType("fakeredis.aioredis")
    fake.FakeRedis = lambda **options: Store(local)
    monkeypatch.setitem(sys.modules, "fakeredis", types.SimpleNamespace(aioredis=fake))
    monkeypatch.setitem(sys.modules, "fakeredis.aioredis", fake)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module._make_bus = lambda store: store.bus
    module.InMemoryMessageBus = lambda: Store(local).bus
    found = unittest.TestResult()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of AgentScope's helpers
        unittest.defaultTestLoader.loadTestsFromModule(module).run(found)
    assert found.testsRun >= 20
    assert not found.skipped
    assert [text for _, text in found.errors + found.failures] == []


VICTIM = """
import asyncio, pickle, sys
from ray_messaging.compat.agentscope import RayMessageBus

async def main():
    async with RayMessageBus(pickle.load(sys.stdin.buffer)) as bus, bus.acquire_lock("turn") as number:
        for entry, item in (await bus.queue_drain("work", 10))[:4]:
            await bus.log_append("acted", item)
            await bus.queue_done("work", entry)
        print(number, flush=True)
        while True:  # a busy loop renews no lease, and its process lives
            pass

asyncio.run(main())
"""


async def test_a_killed_drainers_items_and_lock_go_to_others_once(bus, local):
    assert len(set(await bus.queue_push_all("work", [{"n": n} for n in range(30)]))) == 30
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    victim = await asyncio.create_subprocess_exec(sys.executable, "-c", VICTIM, **pipes)
    victim.stdin.write(pickle.dumps(local))
    victim.stdin.close()
    fence = int(await victim.stdout.readline())
    await asyncio.sleep(agentscope._LEASE_S + 0.5)
    assert await bus.is_locked("turn")
    assert [item["n"] for _, item in await bus.queue_drain("work", 5)] == [10, 11, 12, 13, 14]
    victim.kill()
    await victim.wait()
    async with asyncio.timeout(30), bus.acquire_lock("turn") as number:
        assert number == await bus.fencing_number("turn") > fence
    acted = [item["n"] for _, item in await bus.log_read("acted")] + [10, 11, 12, 13, 14]
    while found := await bus.queue_drain("work", 7):
        acted += [item["n"] for _, item in found]
    assert acted == [*range(4), *range(10, 15), *range(4, 10), *range(15, 30)]


async def test_drains_that_were_cancelled_or_ended_by_an_error_lose_nothing(bus, local):
    for n in range(300):
        await bus.queue_push("work", {"n": n})
    found = []
    while len(found) < 200:
        draining = asyncio.create_task(bus.queue_drain("work", 10))
        for _ in range(len(found) % 7):
            await asyncio.sleep(0)
        draining.cancel()
        with suppress(asyncio.CancelledError):
            found += await draining
        found += await bus.queue_drain("work", 10)
    with suppress(RuntimeError):
        async with RayMessageBus(local) as other:
            await other.queue_drain("work", 50)
            raise RuntimeError
    while some := await bus.queue_drain("work", 50):
        found += some
    assert [item["n"] for _, item in found] == [*range(300)]


async def test_items_of_a_cancelled_drain_go_to_another_bus_while_the_first_one_lives(bus, local):
    async with RayMessageBus(local) as other:
        for n in range(10):
            await bus.queue_push(f"work-{n}", {"n": n})
            draining = asyncio.create_task(other.queue_drain(f"work-{n}"))
            for _ in range(n):
                await asyncio.sleep(0)
            draining.cancel()
            with suppress(asyncio.CancelledError):
                await draining
                continue
            found = []

            async def drained(n=n, found=found):
                found += await bus.queue_drain(f"work-{n}")
                return found

            await until(drained)
            assert [item["n"] for _, item in found] == [n]


async def test_a_drain_of_fewer_items_than_a_cancelled_one_leaves_the_rest_to_all(bus, local):
    async with RayMessageBus(local) as other:
        await bus.queue_push_all("work", [{"n": n} for n in range(10)])
        draining = asyncio.create_task(other.queue_drain("work"))
        await asyncio.sleep(0)
        draining.cancel()
        found = await other.queue_drain("work", 3) + await bus.queue_drain("work")
        assert [item["n"] for _, item in found] == [*range(10)]


async def test_many_drainers_share_a_queue(bus, local):
    async with RayMessageBus(local) as other:
        await asyncio.gather(*(each.queue_push("work", {"n": n}) for n in range(500) for each in (bus, other)))

        async def drain(each):
            found = []
            while some := await each.queue_drain("work", 7):
                found += some
            return found

        drained = await asyncio.gather(*(drain(each) for each in (bus, other) for _ in range(5)))
        found = [item for some in drained for item in some]
        assert len({entry for entry, _ in found}) == len(found) == 1000
        assert sorted(item["n"] for _, item in found) == [n for n in range(500) for _ in range(2)]


async def test_drained_items_count_as_handled_after_a_while(local, monkeypatch):
    monkeypatch.setattr(agentscope, "_BEAT_S", 0.05)
    with suppress(RuntimeError):
        async with RayMessageBus(local, hold_s=0.1) as first:
            await first.queue_push("work", {"n": 1}, ttl_secs=60)
            assert len(await first.queue_drain("work")) == 1
            await until(lambda: not first._held)
            raise RuntimeError
    async with RayMessageBus(local) as second:
        assert await second.queue_drain("work") == []


async def test_locks_are_told_free_at_once_and_only_their_owner_frees_them(bus, local):
    async with RayMessageBus(local) as other:
        assert await bus.try_lock("k", ttl_secs=60)
        assert not await bus.try_lock("k")
        assert not await other.try_lock("k")
        await other.unlock("k")
        assert await other.is_locked("k")
        waiting = asyncio.create_task(other.acquire_lock("k").__aenter__())
        await asyncio.sleep(0.05)
        await bus.unlock("k")
        assert await asyncio.wait_for(waiting, 0.3) > 0
    assert not await bus.is_locked("k")  # its owner has gone
    async with RayMessageBus(local) as other, bus.acquire_lock("k"):
        with suppress(TimeoutError):
            async with asyncio.timeout(0.02), other.acquire_lock("k"):
                raise AssertionError
    assert await bus.fencing_number("k") == 0


async def test_values_change_hands_once(bus):
    await bus.registry_set("r", "f", "1", ttl_secs=100)
    assert await bus.registry_set_if("r", "f", "2", expected="1")
    assert not await bus.registry_set_if("r", "f", "3", expected="1")
    assert not await bus.registry_set_if("r", "g", "3", expected="")
    assert sorted(await asyncio.gather(*(bus.registry_pop("r", "f") for _ in range(3))), key=str) == ["2", None, None]
    assert await bus.registry_get("r", "f") is None


async def test_repeated_writes_have_their_effect_once(bus):
    """A call whose answer was lost is repeated with the same number."""
    script = bus._open().script

    async def twice(*args):
        await script(*args)
        return await script(*args)

    bus._open().script = twice
    await bus.queue_push("work", {"n": 1})
    await bus.log_append("log", {"n": 1}, max_len=10)
    assert len(await bus.queue_drain("work")) == len(await bus.log_read("log")) == 1
    await bus.registry_set("r", "f", "1")
    assert await bus.registry_set_if("r", "f", "2", expected="1")
    assert await bus.registry_pop("r", "f") == "2"
    async with bus.acquire_lock("k"):
        assert await bus.is_locked("k")


async def test_what_cannot_be_sent_raises(bus):
    with pytest.raises(TypeError, match="not JSON serializable"):
        await bus.queue_push("k", {"n": object()})
    with pytest.raises(UnicodeEncodeError):
        await bus.queue_push("k", {"n": "\ud800"})
    with pytest.raises(Closed, match="async with RayMessageBus"):
        await RayMessageBus(name="b").queue_push("k", {})
    assert await bus.queue_drain("k") == []


async def test_closing_ends_subscriptions(local):
    async with RayMessageBus(local) as bus:
        ready = asyncio.Event()

        async def listen():
            return [payload async for payload in bus.subscribe("news", on_ready=ready.set)]

        listening = asyncio.create_task(listen())
        await ready.wait()
        await bus.publish("news", {"n": 1})
        await bus.publish("else", {"n": 2})
        await asyncio.sleep(0.1)
    assert await asyncio.wait_for(listening, 5) == [{"n": 1}]
    await bus.aclose()


def test_the_guide(capsys):
    run_page("docs/guides/agentscope.md", {}, printed=lambda: capsys.readouterr().out, command=None)


def test_another_version_is_named(monkeypatch):
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.9.9")
    with pytest.warns(UserWarning, match=rf"2\.9\.9 is installed, .* tested with {agentscope.TESTED}"):
        RayMessageBus()
