"""Unfolding of broadcasts that a mailbox has received: one message is made for each agent that hears a broadcast."""

from collections.abc import Callable, Iterable

from ray_messaging.audiences.cache import AudienceCache, audience_of
from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.folding import agents_digest, unfold
from ray_messaging.errors import FrameError
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.batch import Batch


class Unfolder:
    """Unfolder of the folded frames of one mailbox. A folded frame has one row for each broadcast.

    A frame is folded for the agents that the mailbox had when the frame was written. The frame has a digest of this set
    of agents. So the unfolder knows the mailbox's current and former sets of agents.
    """

    def __init__(self, audiences: AudienceCache) -> None:
        # A function that returns the sets of agents that the mailbox had before, newest first.
        self.former: Callable[[], Iterable[AgentSet]] = lambda: ()
        self._audiences = audiences
        self._unnamed: list[AgentSet] = []
        self._named: dict[bytes, AgentSet] = {}

    def add(self, agents: AgentSet) -> None:
        """Record a set of agents that this mailbox has, or has had, so that broadcasts to this set can be unfolded."""
        self._unnamed.append(agents)

    async def unfold(self, broadcasts: Batch) -> Batch:
        """Return the messages that a frame of broadcasts stands for, one for each agent that hears a broadcast.

        Raises: FrameError if the frame's agents are not known or the audience's pairs are damaged; UnknownName if the
        audience's version does not exist.
        """
        return unfold(broadcasts, await self.edges(broadcasts))

    async def edges(self, broadcasts: Batch) -> Edges:
        """Return the pairs of sender and hearer by which broadcasts reach this mailbox's agents.

        Args: `broadcasts` is a folded frame, with one row for each broadcast. It names the agents that the mailbox had
        when the frame was written.
        Raises: FrameError if the frame's agents are not known or the audience's pairs are damaged; UnknownName if the
        audience's version does not exist.
        """
        folded = broadcasts.fold
        assert folded is not None
        agents = self.agents_of(folded.agents)
        return await self._audiences.toward(audience_of(broadcasts), agents, folded.agents)

    async def toward(self, broadcasts: Batch, agents: AgentSet) -> Edges:
        """Return the pairs of sender and hearer by which broadcasts reach agents among `agents`.

        Args: `broadcasts` is a folded frame, with one row for each broadcast.
        Raises: FrameError if the audience's pairs are damaged; UnknownName if the audience's version does not exist.
        """
        return await self._audiences.toward(audience_of(broadcasts), agents, agents_digest(agents))

    def agents_of(self, digest: bytes) -> AgentSet:
        """Return the set of agents that has this digest, which a folded frame contains.

        Raises: FrameError if this process does not know the agents.
        """
        self._named |= {agents_digest(agents): agents for agents in self._unnamed}
        self._unnamed.clear()
        found = self._named.get(digest)
        if found is None:  # `self._named` lacks agents that the mailbox had before this process started
            found = next((agents for agents in self.former() if agents_digest(agents) == digest), None)
            self._named |= {} if found is None else {digest: found}
        if found is None:
            raise FrameError(
                "this broadcast is for the agents that the mailbox had when it was sent. The mailbox has other agents "
                "now, and this process does not know the former agents"
            )
        return found
