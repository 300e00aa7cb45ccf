"""The types that supervisors of AgentSociety 1.5 use. A supervisor that imports them from this module can be a rule."""

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, Field

# Supervisors import these names for their annotations only. The objects themselves come from the user's code.
AgentToolbox = Block = Memory = Any


class MessageKind(StrEnum):
    """The kinds of AgentSociety's messages. The value of a kind is the subtopic of its messages in this package."""

    AGENT_CHAT = "agent-chat"
    USER_CHAT = "user-chat"
    AOI_MESSAGE_REGISTER = "aoi-message-register"
    AOI_MESSAGE_CANCEL = "aoi-message-cancel"


class Message(BaseModel):
    """A message in AgentSociety's form. It is hashable, because AgentSociety uses messages as keys of dicts."""

    from_id: int | str | None = None
    to_id: int | str | None = None
    day: int
    t: float
    kind: MessageKind
    payload: dict[str, Any]
    created_at: datetime = Field(default_factory=datetime.now)
    extra: dict[str, Any] | None = None

    def __hash__(self) -> int:
        return hash((self.from_id, self.to_id, self.day, self.t, self.kind, self.created_at))


class SupervisorBase:
    """The base class of supervisors. It stores the arguments that AgentSociety passes."""

    def __init__(
        self,
        id: int = 0,  # noqa: A002 - AgentSociety's name
        name: str = "supervisor",
        toolbox: object = None,
        memory: object = None,
        agent_params: object = None,
        blocks: list[Any] | None = None,
    ) -> None:
        self.id = id
        self.name = name
        self.toolbox: Any = toolbox
        self.memory: Any = memory
        self.params: Any = agent_params
        self.blocks = blocks

    async def forward(self, current_round_messages: list[Message]) -> tuple[dict[Message, bool], list[Message]]:
        """Return a dict from messages of a round to whether they are valid, and a list of further messages to send.

        Messages that are not in the dict are valid.
        """
        raise NotImplementedError(f"{type(self).__name__} must override forward")
