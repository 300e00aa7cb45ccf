"""The steps of a group, as its actor reads them for handles."""

from collections import Counter

from ray_messaging.messager import Messager
from ray_messaging.steps.accounts.sealed_counts import sealed_counts
from ray_messaging.transports.steps.errors import without_steps
from ray_messaging.transports.steps.store import StepStore


class GroupSteps:
    """The committed steps of one group. Its driver is another process, which writes them to the server."""

    def __init__(self, messager: Messager) -> None:
        self._messager = messager

    async def state(self) -> bytes | None:
        """Return the state that the last committed step left; raise ConfigError without steps."""
        return await self._store.state(self._messager.name)

    async def fates(self, step: int) -> "Counter[str]":
        """Return the fates of the group's messages of a step; raise UnknownName, and ConfigError without steps."""
        counts = (await sealed_counts(self._store, step)).get(self._messager.name)
        return Counter() if counts is None else Counter(counts.fates)

    @property
    def _store(self) -> StepStore:
        engine = self._messager.engine
        if engine.transport.steps is None or engine.steps is None:
            raise without_steps(self._messager.exp_id)
        return engine.transport.steps
