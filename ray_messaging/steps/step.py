"""One open step of a group, and its parts."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AGENT_CHAT, AgentId, check_id
from ray_messaging.errors import ConfigError, InvalidParts, UnknownName
from ray_messaging.message import Messages
from ray_messaging.steps.agent_places import AgentPlaces
from ray_messaging.steps.inbox import StepInbox
from ray_messaging.steps.random_numbers import StepGenerators, agent_generator, uniform_rows
from ray_messaging.steps.step_sends import StepSends
from ray_messaging.transaction import check_state


class StepPart:
    """Some agents of a step with their messages, for another task: `step.split` makes it, `step.join` takes its sends.

    It pickles as columns. The task returns it, or only its `sends`, which are less where the agents read much.
    """

    def __init__(self, number: int, *, seed: int, agents: AgentPlaces, inbox: StepInbox, sends: StepSends) -> None:
        self.number = number
        self.sends = sends
        self.seed = seed
        self.places = agents
        self._inbox = inbox
        self.send = sends.send  # a method here would be one call more: a tenth of the whole send
        self.generators = StepGenerators(seed, number, agents)

    def __repr__(self) -> str:
        sizes = f"{len(self.places):,} agents, {len(self.messages):,} messages"
        return f"{type(self).__name__}({self.number}, {sizes})"

    @property
    def agents(self) -> Sequence[AgentId]:
        """Return the agents, ascending: ints before strs."""
        return self.places

    @property
    def messages(self) -> Messages:
        """Return all messages for the agents, in canonical order: by (to_id, step sent, from_id, n-th send)."""
        return self._inbox.messages

    def by_agent(self) -> Iterator[tuple[AgentId, Messages]]:
        """Yield each agent with its messages, agents ascending; also agents without messages."""
        return self._inbox.by_agent()

    def inbox(self, agent: AgentId) -> Messages:
        """Return the messages of one agent; raise UnknownName where it is none of these, InvalidAddress."""
        place = self.places.place(check_id(agent))
        if place < 0:
            raise UnknownName(
                f"agent {agent!r} is none of the {len(self.places):,} agents of this step's group or part", name=agent
            )
        return self._inbox.of(place)

    def rng(self, agent: AgentId) -> np.random.Generator:
        """Return the random numbers of one agent in this step; each call begins them anew. Raises InvalidAddress."""
        checked = agent if type(agent) is int else check_id(agent)
        place = self.places.place(checked)
        return self.generators.at(place) if place >= 0 else agent_generator(self.seed, self.number, check_id(checked))

    def uniform(self, k: int = 1) -> NDArray[np.float64]:
        """Return k uniform random numbers in [0, 1) for each agent, float64 (n, k), rows as in `agents`.

        Raises: ConfigError unless k is a number of at least 0.
        """
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 0:
            raise ConfigError(f"uniform({k!r}): write how many numbers each agent gets")
        return uniform_rows(self.seed, self.number, self.places, k)

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


class Step(StepPart):
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
        super().__init__(number, seed=seed, agents=agents, inbox=inbox, sends=sends)
        self._state = state
        self._state_bytes = state_bytes

    def __reduce__(self) -> Any:  # noqa: ANN401 - it never returns
        raise ConfigError(
            f"step {self.number} stays with its loop: give other tasks parts of it, by `step.split(n)`, and take their "
            "sends by `step.join(parts)`"
        )

    def split(self, n: int) -> list[StepPart]:
        """Return the step as at most n parts, each with some of the agents, for tasks that run beside each other.

            step.join(ray.get([think.remote(part) for part in step.split(8)]))

        The messages, their order and the random numbers of an agent do not depend on n. Until all parts are joined,
        only they can send. A part has no messages for recipients that are no agents of the group.

        Raises: InvalidParts unless n is at least 1, or while the parts of an earlier split are out; Closed.
        """
        return [
            StepPart(
                self.number,
                seed=self.seed,
                agents=sends.agents,
                inbox=self._inbox.part(places.start, places.stop),
                sends=sends,
            )
            for places, sends in self.sends.split(n)
        ]

    def join(self, parts: Iterable[StepPart | StepSends]) -> None:
        """Take over what some parts have sent, in any order; the step cannot be committed until all are here.

        Args: parts as `split` made them, or copies from other processes, or their `sends`.
        Raises: InvalidParts for one that was joined, or is of another step or split: then none is joined. Closed.
        """
        listed = [part.sends if isinstance(part, StepPart) else part for part in parts]
        if strange := [part for part in listed if not isinstance(part, StepSends)]:
            raise InvalidParts(
                f"step.join takes parts of `step.split`, or their `sends`, not a {type(strange[0]).__name__}",
                step=self.number,
            )
        self.sends.join(listed)

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
