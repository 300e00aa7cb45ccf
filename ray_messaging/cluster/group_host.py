"""A group, without Ray: one messager, its callers' sends admitted in order, its messages lent to them."""

from typing import Any

from ray_messaging.cluster.spec import Experiment, GroupSpec
from ray_messaging.messager import Messager
from ray_messaging.messages import Messages
from ray_messaging.receipt import Receipts
from ray_messaging.receiving.lending import Lending
from ray_messaging.sending.admission import Admission


class GroupHost:
    """Host the agents of one group."""

    def __init__(self, experiment: Experiment, interceptor: object, spec: GroupSpec, owner: str) -> None:
        self.spec = spec
        self.messager = Messager(
            experiment.redis, experiment.exp_id, interceptor, name=spec.name, settings=experiment.settings
        )
        self._owner = owner
        self._admission = Admission()
        self._loan_s = experiment.settings.loan_s
        self._lending: Lending | None = None

    async def start(self) -> None:
        """Claim the agents and listen; raise AlreadyExists where one is claimed or the group's name is taken."""
        await self.messager.init()
        await self.messager.host_agents(self.spec.agents, self.spec.subtopics, owner=self._owner)
        self._lending = Lending(self.messager.exp_id, self.messager.subscription, self._loan_s)

    async def relay(self, caller: str, number: int, oldest: int, frames: list[bytes]) -> Receipts:
        """Send what a handle has gathered: in the handle's order, and once."""
        return await self._admission.admit(caller, number, oldest, lambda: self.messager.relay(frames))

    async def fetch(self, caller: str, token: int, limit: int | None, timeout: float | None) -> tuple[int, Messages]:
        """Commit the loan of a token, and lend what is there."""
        assert self._lending is not None
        return await self._lending.fetch(caller, token, limit, timeout)

    async def ack(self, caller: str, token: int) -> None:
        """Commit the loan of a token."""
        assert self._lending is not None
        await self._lending.give_back(caller, token)

    def stats(self) -> dict[str, Any]:
        """Return counters of this group."""
        return self.messager.stats() | {"lent": 0 if self._lending is None else self._lending.lent}

    async def close(self) -> None:
        """Send what was accepted, commit what was handled, and leave."""
        await self.messager.close()
