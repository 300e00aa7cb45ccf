"""What the actors of one experiment are told when they start."""

from dataclasses import dataclass

from ray_messaging.channels import AGENT_CHAT, USER_CHAT, USER_SURVEY
from ray_messaging.config import MessagingConfig, RedisConfig
from ray_messaging.interception.rules import Rule

SUBTOPICS = (AGENT_CHAT, USER_CHAT, USER_SURVEY)


@dataclass(frozen=True)
class Experiment:
    """Say where an experiment's messages are kept, and within which limits; `run` names this start of it."""

    exp_id: str
    run: str
    redis: RedisConfig
    settings: MessagingConfig

    @property
    def interceptor_name(self) -> str:
        """Return the interceptor's name within Ray."""
        return f"{self.exp_id}/interceptor"

    def group_name(self, group: str) -> str:
        """Return a group's name within Ray."""
        return f"{self.exp_id}/group/{group}"


@dataclass(frozen=True)
class InterceptorSpec:
    """Say what the interceptor starts with."""

    exp_id: str
    run: str
    settings: MessagingConfig
    rules: tuple[Rule, ...]
    on_existing: str
