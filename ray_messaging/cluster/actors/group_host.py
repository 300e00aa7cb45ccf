"""A group, without Ray: one messager, its callers' sends admitted in order, its messages lent to them."""

import time
from collections.abc import Sequence
from typing import Any

from ray_messaging.cluster.actors.caller_admission import CallerAdmission
from ray_messaging.cluster.owner_liveness import is_dead
from ray_messaging.cluster.spec import Experiment
from ray_messaging.errors import CommitFailed, NotListening
from ray_messaging.message import Messages
from ray_messaging.messager import Messager
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.id_column import IdColumn
from ray_messaging.observability.health.reports import Report
from ray_messaging.receipt import Receipts
from ray_messaging.receiving.ack_ranges import Span
from ray_messaging.receiving.delivery_leases import DeliveryLeases, Token
from ray_messaging.receiving.fetch_options import NEXT, FetchOptions


class GroupHost:
    """Host the agents of one group; `owner` names the actor, whose processes succeed each other in its mailbox."""

    def __init__(self, experiment: Experiment, interceptor: object, name: str, owner: str) -> None:
        self.agents = IdColumn.of([])
        self.messager = Messager(
            experiment.redis, experiment.exp_id, interceptor, name=name, settings=experiment.group_settings
        )
        self._name = name
        self._owner = owner
        self._admission = CallerAdmission()
        self._loan_s = experiment.settings.loan_s
        self._lending: DeliveryLeases | None = None

    async def start(self, agents: IdColumn, subtopics: Sequence[str]) -> None:
        """Claim the agents and listen; raise AlreadyExists where one is claimed or the group's name is taken."""
        await self.messager.init()
        await self.messager.host_agents(AgentSet.of(agents), subtopics, owner=self._owner, gone=is_dead)
        self.agents = agents
        self._lending = DeliveryLeases(self.messager.exp_id, self.messager.subscription, self._loan_s)

    async def resume(self) -> None:
        """Go on where a process that died stopped; the directory knows whom it hosted. Raises NotListening."""
        await self.messager.init()
        record = self.messager.directory.records.get(self._name)
        if record is None:
            raise NotListening(
                f"group {self._name!r} was removed, or its process died before it listened: create it again"
            )
        subtopics = [subtopic for claim in record.claims for subtopic in claim.subtopics]
        await self.start(record.agents().column, subtopics)

    async def relay(self, caller: str, number: int, oldest: int, frames: list[bytes]) -> Receipts:
        """Send what a handle has gathered: in the handle's order, and once."""
        return await self._admission.admit(caller, number, oldest, lambda: self.messager.relay(frames))

    async def fetch(
        self, caller: str, token: Token | None, limit: int | None, timeout: float | None, asking: FetchOptions = NEXT
    ) -> tuple[Token | None, Messages]:
        """Commit the loan of a token, and lend what is there."""
        assert self._lending is not None
        return await self._lending.fetch(caller, token, limit, timeout, asking)

    async def ack(self, caller: str, token: Token | None) -> None:
        """Commit the loan of a token."""
        assert self._lending is not None
        await self._lending.give_back(caller, token)

    async def ack_some(self, loans: Sequence[tuple[Token, Sequence[Span]]]) -> tuple[list[Token], CommitFailed | None]:
        """Commit some rows of loans; return those loans that are over, and what failed."""
        assert self._lending is not None
        return await self._lending.give_back_some(loans)

    async def give_up(self, caller: str, token: Token | None) -> None:
        """Let whoever fetches next have the loan of a token."""
        assert self._lending is not None
        await self._lending.give_up(caller, token)

    def stats(self) -> dict[str, Any]:
        """Return counters of this group."""
        return self.messager.stats() | {"lent": 0 if self._lending is None else self._lending.lent}

    def health(self) -> Report:
        """Say how it is doing."""
        engine = self.messager.engine
        return Report(time.time(), loops=[*engine.loops(), *engine.transport.loops()], stats=self.stats())

    async def close(self) -> None:
        """Send what was accepted, commit what was handled, and leave."""
        await self.messager.close()
