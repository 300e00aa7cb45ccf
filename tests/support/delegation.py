"""An interceptor behind a lane of its own, in this process, that may delegate its rules to messagers."""

import asyncio
import inspect

from ray_messaging import Outgoing
from ray_messaging.addressing.server_keys import Keys
from ray_messaging.common.backoff import RetryPolicy
from ray_messaging.config import ShardsConfig
from ray_messaging.interception import delegated_rules
from ray_messaging.interception.interceptor import rule_delegation
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.interceptor.lane_server import LaneServer
from ray_messaging.transports.connection.link import RedisLink
from ray_messaging.transports.log_store import RedisLog
from support.patience import WAIT_S


def delegate_at_once(monkeypatch):
    """Delegate rules at once."""
    monkeypatch.setattr(rule_delegation, "CALM_S", 0.0)
    monkeypatch.setattr(delegated_rules, "SNAPSHOT_RETRY", RetryPolicy(0.0, 0.0))


async def send(sender, *pairs):
    """Send a message for each pair in one batch; return the fates' first letters."""
    receipts = await sender.send_messages([Outgoing.to_agent(to, {}, from_id=by) for by, to in pairs])
    return "".join(fate[0] for fate in receipts.fates)


async def passed(sender, pair=(1, 1)):
    """Send until a message has passed by delegated rules; return the number of sends."""
    before, sent = sender.stats()["delegated"], 0
    async with asyncio.timeout(WAIT_S):
        while sender.stats()["delegated"] == before:
            assert await send(sender, pair) == "d"
            sent += 1
    return sent


class Method:
    """A `handle.method` with an awaitable `remote`; `calls` are the arguments that it was given."""

    def __init__(self, call):
        self.call = call
        self.calls = []

    async def remote(self, *args, **options):
        self.calls.append(args)
        found = self.call(*args, **options)
        return await found if inspect.isawaitable(found) else found


class InterceptorEpoch:
    """The interceptor's epoch on the server; `gate` holds up its writes, `failure` refuses them."""

    def __init__(self, server, exp_id):
        self.exp_id = exp_id
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure = None
        self.written = []
        self.keys = Keys(exp_id)
        config = server.servers[0] if isinstance(server, ShardsConfig) else server
        self.link = RedisLink(config, 10.0, home=self.keys.prefix)

    async def take(self):
        log = RedisLog(self.link, Keys(self.exp_id))
        return (await log.take_epoch("advance_interceptor_epoch", "start:interceptor", [log.keys.meta], []))[1]

    async def advance_delegation(self, epoch, number):
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        self.written.append(number)
        return bool(await self.link.script("advance_delegation", [Keys(self.exp_id).meta], [epoch, number]))

    async def close(self):
        await self.link.close()


class Actor:
    """A handle like that of our interceptor actor; `asked` counts the batches for which it gave verdicts."""

    def __init__(self, interceptor_epoch, exp_id):
        self.interceptor_epoch = interceptor_epoch
        self.exp_id = exp_id
        self.asked = 0
        self.silent = False
        self.questions = asyncio.Queue()
        self.lane = Method(self._lane)
        self.forward_batch = Method(self._forward_batch)
        self.interceptor = self.server = None
        self.messagers = 1  # that it says there are
        self.servers = []

    async def begin(self, *rules, **options):
        """Let a new interceptor take over, with a lane of its own."""
        epoch = await self.interceptor_epoch.take()
        self.interceptor = Interceptor(
            self.exp_id, rules, epoch=epoch, publish_snapshot=self._publish_under(epoch), **options
        )
        interceptor = self.interceptor
        self.server = LaneServer(
            lambda request, patient: self._answer(interceptor, bytes(request), patient=patient),
            lambda request: self._never() if self.silent else interceptor.snapshot(request, self.messagers),
        )
        self.servers.append(self.server)
        self.address = await self.server.start("127.0.0.1")
        return self

    def _publish_under(self, epoch):
        async def publish(number):
            await self.interceptor_epoch.advance_delegation(epoch, number)

        return publish

    def _answer(self, interceptor, request, *, patient):
        self.asked += 1
        self.questions.put_nowait(request)
        return self._never() if self.silent else interceptor.answer(request, patient=patient)

    async def _never(self):
        await asyncio.get_running_loop().create_future()

    async def _lane(self, **_):
        if self.address is None:
            raise RuntimeError("the actor restarts")
        return self.address

    async def _forward_batch(self, request, patient, **_):
        return await self._never()

    async def close(self):
        for server in self.servers:
            await server.close()
        if self.interceptor is not None:
            await self.interceptor.close()
