"""The steps of a group, in its actor: one driver at a time opens and closes them."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import suppress

from ray_messaging.cluster.step_calls import OpenStep, StepDone, StepDriver
from ray_messaging.errors import AlreadyExists
from ray_messaging.messager import Messager
from ray_messaging.steps.sealed_counts import sealed_counts
from ray_messaging.steps.step import Step
from ray_messaging.steps.step_loop import LEASE_S, step_loop
from ray_messaging.transports.steps.errors import without_steps
from ray_messaging.transports.steps.store import StepStore


class GroupSteps:
    """The steps of one group. A call that Ray repeats, in this process or in its successor, has its effect once.

    A task that Ray runs again replaces its earlier attempt at once, because that one is dead. Any other driver waits
    until the one before has ended, or has given no sign of life for a lease.
    """

    def __init__(self, messager: Messager) -> None:
        self._messager = messager
        self._driver: StepDriver | None = None
        self._until = -1
        self._sign = asyncio.Event()  # the next sign of life of the driver, or its end
        self._seen_at = 0.0
        self._steps: AsyncGenerator[Step, None] | None = None
        self._open: Step | None = None
        self._calls = asyncio.Lock()

    async def advance(self, driver: StepDriver, until: int, done: StepDone | None) -> OpenStep | None:
        """Commit the step that a driver has done (None: it begins), and open the next one; None: there is none.

        Raises: AlreadyExists where another driver has the group and lives; as `Messager.steps`.
        """
        await self._admit(driver)
        async with self._calls:
            if self._driver != driver or self._until != until:
                await self._stop()
            try:
                if self._steps is None:
                    self._driver, self._until = driver, until
                    self._steps = step_loop(self._messager.engine).steps(until)
                    self._open = await anext(self._steps, None)
                if done is not None and self._open is not None and done.number == self._open.number:
                    self._open.sends.adopt(done.sends)
                    self._open.state = done.state
                    self._open = await anext(self._steps, None)
            except BaseException:
                self._steps = self._open = None  # it has ended
                raise
            return self._view(0 if done is None else done.agents)

    async def state(self) -> bytes | None:
        """Return the state that the last committed step left; raise ConfigError without steps."""
        return await self._store.state(self._messager.name)

    async def fates(self, step: int) -> "Counter[str]":
        """Return the fates of what the group sent in a step; raise UnknownName, and ConfigError without steps."""
        counts = (await sealed_counts(self._store, step)).get(self._messager.name)
        return Counter() if counts is None else Counter(counts.fates)

    @property
    def _store(self) -> StepStore:
        engine = self._messager.engine
        if engine.transport.steps is None or engine.steps is None:
            raise without_steps(self._messager.exp_id)
        return engine.transport.steps

    def alive(self, driver: StepDriver) -> None:
        """Note a sign of life of the driver."""
        if driver == self._driver:
            self._seen_at = time.monotonic()
            self._tell()

    async def end(self, driver: StepDriver) -> None:
        """End a driver's steps; its open step stays uncommitted."""
        if driver == self._driver:
            async with self._calls:
                if driver == self._driver:
                    await self._stop()
                    self._driver = None
                    self._tell()

    async def _admit(self, driver: StepDriver) -> None:
        """Wait until no other driver has the group; raise AlreadyExists at a sign of life of the one that has it."""
        while (current := self._driver) is not None and current.task != driver.task:
            left = self._seen_at + LEASE_S - time.monotonic()
            if left <= 0:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._sign.wait()
                if self._driver == current:
                    raise AlreadyExists(
                        f"task {current.task!r} drives the steps of group {self._messager.name!r}: a group is driven "
                        "by one task at a time. End that task, or let it drive on",
                        kind="driver",
                        value=self._messager.name,
                        owner=current.task,
                    )
        self._seen_at = time.monotonic()
        self._tell()

    def _tell(self) -> None:
        """Wake the drivers that wait for the group."""
        self._sign.set()
        self._sign = asyncio.Event()

    async def _stop(self) -> None:
        steps, self._steps, self._open = self._steps, None, None
        if steps is not None:
            await steps.aclose()

    def _view(self, agents_known: int) -> OpenStep | None:
        step = self._open
        if step is None:
            return None
        slices = step.messages.slices
        return OpenStep(
            step.number,
            step.seed,
            step.sends.horizon,
            slices[0].batch if slices else None,
            step.state,
            step.places.column if len(step.places) != agents_known else None,
        )
