"""The interceptor with its lane and its state on the server, without Ray."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from ray_messaging.channels import AgentId, check_id
from ray_messaging.cluster.spec import Experiment, InterceptorSpec
from ray_messaging.config import RedisConfig
from ray_messaging.directory import Directory
from ray_messaging.errors import AlreadyExists
from ray_messaging.interception.interceptor import Interceptor
from ray_messaging.interception.lane import LaneAddress, LaneServer
from ray_messaging.interception.rules import BlackList, Rule
from ray_messaging.transports.redis import RedisTransport

_ERASE_CHUNK = 1000


class InterceptorHost:
    """Hold the interceptor of one experiment, serve its lane, and keep what its rules must not forget."""

    def __init__(self, spec: InterceptorSpec, redis: RedisConfig) -> None:
        self.experiment = Experiment(spec.exp_id, spec.run, redis, spec.settings)
        self.transport = RedisTransport(redis, spec.exp_id, patience_s=spec.settings.send_timeout_s)
        self.interceptor = Interceptor(spec.exp_id, spec.rules)
        self.lane_address = LaneAddress("", 0, "")
        self._spec = spec
        self._lane = LaneServer(self.interceptor.answer)
        self._directory = Directory(spec.exp_id)
        self._changing = asyncio.Lock()

    async def start(self, host: str) -> None:
        """Take the experiment, a new epoch and the state of the rules, and serve the lane on an address.

        Raises: AlreadyExists where the server holds an experiment of this name already, unless told otherwise.
        """
        keys, link = self.transport.keys, self.transport.link
        await self.transport.connect()
        restarted = await self._take_experiment()
        saved = await link.command("HGETALL", keys.rules)
        states = {name.decode(): state for name, state in zip(saved[::2], saved[1::2], strict=True)}
        for rule in self.interceptor.rules:
            if rule.name in states:
                state = msgspec.msgpack.decode(states.pop(rule.name))
                if restarted:
                    rule.load(state)
                else:
                    rule.merge(state)
                    await self._store(rule)
        if states.get(BlackList.name):
            # One that was put in at run time.
            self.interceptor.black_list.load(msgspec.msgpack.decode(states[BlackList.name]))
        # From here on, verdicts of a predecessor that lives on let nothing pass.
        self.interceptor.epoch = int(await link.command("HINCRBY", keys.meta, "interceptor", 1))
        self.lane_address = await self._lane.start(host)

    async def _take_experiment(self) -> bool:
        """Enter this run as the experiment's; tell whether it was there, as after a restart of this actor."""
        keys, link, spec = self.transport.keys, self.transport.link, self._spec
        if spec.on_existing == "reset" and await link.command("HGET", keys.meta, "run") != spec.run.encode():
            counters = await link.command("HMGET", keys.meta, "directory", "interceptor")
            await self._erase()
            for name, count in zip(("directory", "interceptor"), counters, strict=True):
                if count is not None:  # who lives on from before must notice: no number comes again
                    await link.command("HSET", keys.meta, name, int(count) + 1)
        fresh = await link.command("HSETNX", keys.meta, "run", spec.run)
        holder = await link.command("HGET", keys.meta, "run")
        if fresh or holder == spec.run.encode():
            return not fresh
        if spec.on_existing == "error":
            raise AlreadyExists(
                f"experiment {spec.exp_id!r} has data on the server at {link.where} already: go on with them by "
                "on_existing='resume', delete them by on_existing='reset', or choose another exp_id",
                kind="experiment",
                value=spec.exp_id,
                owner=None,
            )
        await link.command("HSET", keys.meta, "run", spec.run)
        return False

    async def _store(self, rule: Rule) -> None:
        state = msgspec.msgpack.encode(rule.dump())
        await self.transport.link.command("HSET", self.transport.keys.rules, rule.name, state)

    async def change_black_list(self, change: Callable[[BlackList], None]) -> None:
        """Change the black list; it is on the server, and in force, once this has returned."""
        async with self._changing:  # what is stored last is what was changed last
            rule = self.interceptor.black_list
            change(rule)
            await self._store(rule)

    async def groups(self) -> list[str]:
        """Return the names of the mailboxes that claim agents for themselves."""
        await self._reload()
        return [name for name, record in self._directory.records.items() if record.exclusive]

    async def owner_of(self, agent_id: AgentId) -> str | None:
        """Return the group that hosts an agent."""
        await self._reload()
        found = self._directory.owner_of({check_id(agent_id)}, besides="")
        return None if found is None else found[1]

    async def _reload(self) -> None:
        self._directory.update(*await self.transport.load_directory(self._directory.version))

    async def stats(self) -> dict[str, Any]:
        """Return counters, and what waits in each mailbox."""
        return {
            "epoch": self.interceptor.epoch,
            "rules": [rule.name for rule in self.interceptor.rules],
            "judged": self.interceptor.judged,
            "blocked": self.interceptor.blocked,
            "lane_connections": len(self._lane.connections),
            "lane_refused": self._lane.refused,
            "waiting": await self.transport.waiting(),
        }

    async def close(self, *, erase: bool) -> None:
        """Stop serving; `erase` removes the experiment's data from the server."""
        await self._lane.close()
        if erase:
            await self._erase()
        await self.transport.close()

    async def _erase(self) -> None:
        link, cursor = self.transport.link, b"0"
        # The prefix holds no glob characters: an exp_id has none, and braces are none of Redis's.
        pattern = self.transport.keys.prefix + "*"
        while True:
            cursor, keys = await link.command("SCAN", cursor, "MATCH", pattern, "COUNT", _ERASE_CHUNK)
            if keys:
                await link.command("UNLINK", *keys)
            if int(cursor) == 0:
                return
