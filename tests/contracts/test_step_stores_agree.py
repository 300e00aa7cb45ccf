"""One course of calls on a server in memory and on Valkey: each answer is the same."""

import itertools
import random

import pytest

from ray_messaging.config import MessagingConfig
from ray_messaging.errors import MessagingError
from ray_messaging.transports.backend import open_transport
from ray_messaging.transports.memory import MemoryServer
from ray_messaging.transports.steps.values import (
    OUTSIDE,
    Closing,
    Cover,
    Driven,
    Driver,
    Opened,
    StepSettings,
    StepTag,
    Taken,
    WaitFor,
    Waiting,
    box_name,
)
from ray_messaging.transports.transport import LOG, FrameWrite, LoggedFrame, Published, SendRequest

GROUPS = ["a", "b", "c", "d"]
CALLS = 250


class World:
    """A step store whose answers are rid of numbers that it draws: attempts become names of drivers."""

    def __init__(self, transport):
        self.steps = transport.steps
        self.attempts, self.names, self.leases = {}, {(OUTSIDE, 0): "outside"}, {}

    async def call(self, name, *args, **more):
        try:
            return self.plain(await getattr(self, name, getattr(self.steps, name, None))(*args, **more))
        except (MessagingError, ValueError) as error:
            return type(error).__name__

    def plain(self, answer):
        """Return an answer without numbers and places that differ from server to server."""
        if isinstance(answer, tuple) and not hasattr(answer, "_fields"):
            return [self.plain(value) for value in answer]
        if isinstance(answer, Cover | StepTag):
            return answer._replace(attempt=self.names[answer.group, answer.attempt])
        if isinstance(answer, Opened):
            return answer._replace(covers=sorted(map(self.plain, answer.covers)))
        if isinstance(answer, Waiting):
            return answer._replace(names=sorted(answer.names), news="")
        if isinstance(answer, tuple) and hasattr(answer, "_fields"):
            drawn = {"news", "entry", "idle_ms", "lease"}
            fields = answer._asdict().items()
            return {name: self.plain(value) for name, value in fields if name not in drawn}
        if isinstance(answer, dict):
            return {name: self.plain(value) for name, value in sorted(answer.items())}
        return [self.plain(value) for value in answer] if isinstance(answer, list) else answer

    def attempt(self, driver):
        """Return the attempt of a driver; one that has never got its group believes in the first."""
        return self.attempts.get(driver, 1)

    async def join(self, group, again):
        return await self.steps.join(group, again=again)

    async def take(self, group, driver, until=None):
        found = await self.steps.take(group, driver, 1.0, self.leases.get(group, ""), until)
        if isinstance(found, Driven):
            self.leases[group] = found.lease
            return "driven", found.driver
        assert isinstance(found, Taken)
        self.attempts[driver] = found.attempt
        self.names[group, found.attempt] = str(driver)
        return found._replace(attempt=str(driver))

    async def send(self, group, driver, step, writes):
        tag = StepTag(group, step, self.attempt(driver))
        reply = await self.steps.send(SendRequest("writer", 0, 0, -1, writes), tag)
        return reply.status, reply.fates

    async def commit(self, group, driver, step, writes, closing, go_on):
        tag = StepTag(group, step, self.attempt(driver))
        return await self.steps.commit(SendRequest("writer", 0, 0, -1, writes), tag, closing, go_on=go_on)

    async def open(self, group, driver, step):
        return await self.steps.open(group, self.attempt(driver), step)

    async def close(self, group, driver, step, closing, go_on):
        return await self.steps.close(group, self.attempt(driver), step, closing, go_on=go_on)

    async def let_go(self, group, driver):
        await self.steps.let_go(group, self.attempt(driver))

    async def renew(self, group, driver):
        await self.steps.renew(group, self.attempt(driver))

    async def closed_step(self, step):
        found = await self.steps.closed_step(step)
        return {group: (self.names[group, closed.attempt], closed.counts) for group, closed in found.items()}


class Course:
    """A random course of calls, mostly such as drivers make, and some that nobody should make."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.drivers, self.tasks = [], itertools.count()
        self.settings = StepSettings(
            wait_for=self.chance.choice(list(WaitFor)), window=2, horizon=3, lag=2, box_rows=20, box_bytes=400,
            lag_large=1, lag_bytes=self.chance.choice([20, 1000]),
        )  # fmt: skip
        self.hears = {name: self.chance.choice([None, self.chance.sample(GROUPS, 2)]) for name in GROUPS}
        self.numbers, self.rows, self.closed = {}, {}, {}

    def next(self, progress):
        """Return a call: its name and arguments."""
        chance, group = self.chance, self.chance.choice(GROUPS)
        kind = chance.choices(
            [
                "join",
                "declare",
                "leave",
                "take",
                "let_go",
                "renew",
                "open",
                "send",
                "close",
                "commit",
                "pause",
                "resume",
                "hold",
                "look",
            ],
            [4, 3, 0.5, 5, 1, 1, 25, 20, 15, 10, 0.5, 6, 4, 8],
        )[0]
        if kind == "join":
            return kind, group, chance.random() < 0.5
        if kind == "declare":
            at = chance.choice([None, progress["latest"] + chance.randint(0, 4)])
            return kind, {group: chance.choice([None, chance.sample(GROUPS, 2)])}, at
        if kind == "leave":
            return kind, group
        if kind == "take":
            known = [driver for name, driver in self.drivers if name == group]
            driver = chance.choice([*known, Driver(f"task-{next(self.tasks)}")])
            if chance.random() < 0.3:
                driver = driver._replace(start=driver.start + 1)
            self.drivers.append((group, driver))
            return kind, group, driver, chance.choice([None, progress["latest"] + chance.randint(1, 9)])
        if kind in {"pause", "resume"}:
            return (kind, *([chance.choice([None, progress["latest"] + 1])] if kind == "resume" else []))
        if kind == "hold":
            return kind, "log", min(progress["sealed"], progress["latest"]) + chance.choice([-1, 0])
        if kind == "look":
            box = box_name(chance.choice([*GROUPS, ":log", ":out"]), progress["latest"] + chance.choice([0, 1]))
            looks = [
                ("read_box", box),
                ("open_box", box, 2),
                ("covers", box),
                ("box_size", box),
                ("boxes", progress["latest"] + 1),
            ]
            return chance.choice([*looks, ("closed_step", progress["sealed"])])
        return self.of_driver(kind, progress)

    def of_driver(self, kind, progress):
        """Return a call of a driver; mostly of the last one of its group."""
        chance, group = self.chance, self.chance.choice(GROUPS)
        known = [driver for name, driver in self.drivers if name == group]
        if not known:
            return "progress", *()
        found = progress["groups"].get(group)
        if found is None:
            return "join", group, True
        if found["driver"] is None:
            return "take", group, chance.choice(known)
        driver = Driver(**found["driver"]) if chance.random() < 0.9 else chance.choice(known)
        if kind in {"send", "close", "commit"} and found["open"] is None and chance.random() < 0.9:
            kind = "open"
        step = found["closed"] + 1 + (chance.choice([-1, 1]) if chance.random() < 0.1 else 0)
        if kind in {"let_go", "renew"}:
            return kind, group, driver
        if kind == "open":
            return kind, group, driver, step
        key = group, driver, step
        if kind == "send":
            return kind, group, driver, step, [self.write(key) for _ in range(chance.randint(1, 3))]
        writes = [self.write(key) for _ in range(chance.randint(0, 2))] if kind == "commit" else []
        written = sum(write.rows for write in writes if write.mailbox not in {"", LOG})
        rows = self.rows.get(key, 0) + written + (chance.random() < 0.05)
        state = chance.choice([{}, {"state_changed": True, "state": chance.choice([None, b"s"])}])
        closing = Closing(rows, b"c", **state), chance.random() < 0.5
        return (kind, group, driver, step, *([writes] if kind == "commit" else []), *closing)

    def write(self, key):
        chance, step = self.chance, key[2]
        box = chance.choice([box_name(chance.choice(GROUPS), step + chance.choice([1, 1, 1, 2, 3, 4])), LOG, ""])
        self.numbers[key, box] = number = self.numbers.get((key, box), 0) + (chance.random() < 0.9)
        noted = LoggedFrame(b"frame", b"note", 2) if box == LOG or chance.random() < 0.2 else None
        publish = [Published("news", b"x")] * (2 if box == "" else 0)
        return FrameWrite(box, number, chance.randint(1, 5), b"f" * chance.randint(0, 30), publish, noted)

    def heard(self, call, answer):
        """Count rows as a driver does."""
        if call[0] == "send" and not isinstance(answer, str):
            for write, fate in zip(call[4], answer[1], strict=False):
                if fate == 0 and write.mailbox not in {"", LOG}:
                    self.rows[call[1:4]] = self.rows.get(call[1:4], 0) + write.rows


@pytest.mark.parametrize("seed", range(12))
async def test_two_stores_answer_the_same(valkey_config, exp_id, seed):
    transports = [open_transport(server, exp_id, MessagingConfig()) for server in (MemoryServer(), valkey_config)]
    worlds, course, kinds = [], Course(seed), set()
    for transport in transports:
        await transport.connect()
        worlds.append(World(transport))
        await transport.steps.begin(course.settings)
        for group in GROUPS[:2]:
            await transport.steps.join(group)
        await transport.steps.declare(course.hears)
    for _ in range(CALLS):
        progress = [await world.call("progress") for world in worlds]
        assert progress[0] == progress[1]
        call = course.next(progress[0])
        one, other = [await world.call(*call) for world in worlds]
        assert one == other, call
        course.heard(call, one)
        kinds.add((call[0], type(one).__name__))
    assert len(kinds) > 8
    for transport in transports:
        await transport.close()
