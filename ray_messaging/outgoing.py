"""A message to send, with its recipients."""

from collections.abc import Iterable

from ray_messaging.addressing.channels import (
    AGENT_CHAT,
    OMITTED,
    AgentId,
    SenderId,
    check_id,
    check_subtopic,
    no_channel,
)
from ray_messaging.compat.msg import Payload


class Outgoing:
    """One message to send, or one payload for many recipients.

    Build it with a channel, or with `to_agent` or `to_agents` for recipients. Ids are checked at once; a channel is
    checked when the message is sent. If from_id is None, the sender is the user: the person outside of the simulation.
    If from_id is left out, the sender is also the user, but a group refuses to send the message. The channel of an
    agent names the recipient, so `to_id` may be left out. On a channel that belongs to no agent, `to_id` is only
    recorded as the recipient.

    Raises: InvalidAddress for an invalid id, or for a channel that is not a str.
    """

    __slots__ = ("channel", "from_id", "payload", "subtopic", "to_id", "to_ids", "unnamed")

    def __init__(
        self, channel: str, payload: Payload, from_id: SenderId = OMITTED, to_id: AgentId | None = None
    ) -> None:
        if not isinstance(channel, str):
            raise no_channel(channel)
        self.channel: str | None = channel  # None: the message goes to its recipients' channels
        self.payload = payload
        self.unnamed = from_id is OMITTED
        self.from_id = None if from_id is None or from_id is OMITTED else check_id(from_id)
        self.to_id = None if to_id is None else check_id(to_id)
        self.to_ids: list[AgentId] | None = None
        self.subtopic = ""

    @classmethod
    def to_agent(
        cls, to_id: AgentId, payload: Payload, from_id: SenderId = OMITTED, subtopic: str = AGENT_CHAT
    ) -> "Outgoing":
        """Build a message for one agent; raise InvalidAddress for an invalid id or subtopic."""
        made = cls("", payload, from_id, to_id)
        made.channel = None
        if to_id is None:
            check_id(to_id)  # for the id None, this call raises the error
        made.subtopic = check_subtopic(subtopic)
        return made

    @classmethod
    def to_agents(
        cls,
        to_ids: Iterable[AgentId],
        payload: Payload,
        from_id: SenderId = OMITTED,
        subtopic: str = AGENT_CHAT,
    ) -> "Outgoing":
        """Build a message with one payload for many agents. A call that sends it returns a receipt for each agent.

        Raises: InvalidAddress for an invalid id or subtopic.
        """
        made = cls("", payload, from_id)
        made.channel = None
        made.to_ids = [check_id(to_id) for to_id in to_ids]
        made.subtopic = check_subtopic(subtopic)
        return made

    def __repr__(self) -> str:
        where = self.channel or (self.to_id if self.to_ids is None else f"{len(self.to_ids)} agents")
        return f"Outgoing({where!r}, from_id={self.from_id!r})"
