"""One open step of a group."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AGENT_CHAT, AgentId, check_id
from ray_messaging.errors import UnknownName
from ray_messaging.message import Messages
from ray_messaging.steps.agent_places import AgentPlaces
from ray_messaging.steps.inbox import StepInbox
from ray_messaging.steps.random_numbers import agent_generator, uniform_rows
from ray_messaging.steps.step_sends import StepSends
from ray_messaging.transaction import check_state


class Step:
    """One step of a group: the messages that its agents read and send, and the state that they leave.

    Messages go out when the step is committed, which is when the next one is asked for. The inbox, its order and
    the random numbers are the same each time the step runs again.
    """

    def __init__(
        self,
        number: int,
        *,
        seed: int,
        agents: AgentPlaces,
        inbox: StepInbox,
        sends: StepSends,
        state: bytes | None,
        state_bytes: int,
    ) -> None:
        self.number = number
        self.sends = sends
        self.seed = seed
        self.places = agents
        self._inbox = inbox
        self._state = state
        self._state_bytes = state_bytes

    def __repr__(self) -> str:
        return f"Step({self.number}, {len(self.places):,} agents, {len(self.messages):,} messages)"

    @property
    def agents(self) -> Sequence[AgentId]:
        """Return the group's agents, ascending: ints before strs."""
        return self.places

    @property
    def messages(self) -> Messages:
        """Return all messages of the step, in canonical order: by (to_id, step sent, from_id, n-th send)."""
        return self._inbox.messages

    def by_agent(self) -> Iterator[tuple[AgentId, Messages]]:
        """Yield each agent with its messages, agents ascending; also agents without messages."""
        return self._inbox.by_agent()

    def inbox(self, agent: AgentId) -> Messages:
        """Return the messages of one agent; raise UnknownName where the group does not host it, InvalidAddress."""
        place = self.places.place(check_id(agent))
        if place < 0:
            raise UnknownName(f"agent {agent!r} is none of this group's {len(self.places):,} agents", name=agent)
        return self._inbox.of(place)

    def rng(self, agent: AgentId) -> np.random.Generator:
        """Return the random numbers of one agent in this step; each call begins them anew. Raises InvalidAddress."""
        return agent_generator(self.seed, self.number, check_id(agent))

    def uniform(self, k: int = 1) -> NDArray[np.float64]:
        """Return k uniform random numbers in [0, 1) for each agent, float64 (n, k), rows as in `agents`."""
        return uniform_rows(self.seed, self.number, self.places, k)

    def send(
        self,
        from_id: AgentId,
        to_id: AgentId,
        payload: object,
        *,
        subtopic: str = AGENT_CHAT,
        deliver_at: int | None = None,
    ) -> None:
        """Send one message, to be read in the next step or in `deliver_at`.

        Raises: UnknownSender for a from_id that the group does not host, InvalidAddress, InvalidPayload,
        PayloadTooLarge, ConfigError for a `deliver_at` that is over or too far ahead, Closed after the step.
        """
        self.sends.add(from_id, to_id, payload, subtopic, deliver_at)

    def send_columns(
        self,
        from_ids: object,
        to_ids: object,
        payloads: object,
        *,
        subtopic: str = AGENT_CHAT,
        deliver_at: int | None = None,
    ) -> None:
        """Send n messages given as columns, as `Messager.send_columns` takes them; raises as `send`."""
        self.sends.add_columns(from_ids, to_ids, payloads, subtopic, deliver_at)

    @property
    def state(self) -> bytes | None:
        """Return the group's state: that of the step before, or the one set in this step. None: there is none.

        Setting it raises InvalidPayload unless it is bytes or None, PayloadTooLarge above MessagingConfig.state_bytes,
        Closed after the step.
        """
        return self._state

    @state.setter
    def state(self, state: bytes | None) -> None:
        self.sends.check_open()
        self._state = check_state(state, self._state_bytes, "step.state")
