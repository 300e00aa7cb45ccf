"""The channels and patterns to which a messager subscribes, and the agents that it hosts."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from ray_messaging.addressing.channels import AgentId, build_channel, check_subtopic, parse_channel
from ray_messaging.addressing.directory import Directory, MailboxRecord, claims_of
from ray_messaging.addressing.patterns import compile_glob, is_glob
from ray_messaging.config import MessagingConfig
from ray_messaging.errors import AlreadyExists, InvalidAddress
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet, ChannelSet


@dataclass(frozen=True, slots=True)
class SubscriptionSpec:
    """All channels, patterns and agents of one messager. A change makes a new spec, so a failed change leaves no trace.

    `fresh` and `fresh_globs` are the exact channels and the patterns that the last change added.
    """

    exp_id: str
    agents: dict[str, AgentSet] = field(default_factory=dict)  # the agents for each subtopic
    plain: tuple[str, ...] = ()
    globs: tuple[str, ...] = ()
    exclusive: bool = False
    owner: str = ""
    moved: bool = False  # whether agents have moved into or out of the mailbox
    fresh: Collection[str] = ()
    fresh_globs: tuple[str, ...] = ()

    def with_channels(self, channels: object) -> "SubscriptionSpec":
        """Return the spec with more channels and patterns; raise InvalidAddress for an invalid channel or pattern."""
        if isinstance(channels, str | bytes) or not isinstance(channels, Iterable):
            raise InvalidAddress(f"channels must be a list, not {channels!r}: write [channel, ...]", value=channels)
        plain, globs = [], []
        added: dict[str, set[AgentId]] = {}
        for channel in channels:
            if isinstance(channel, str) and is_glob(channel):
                compile_glob(channel)  # this call raises the error for a malformed pattern
                globs.append(channel)
                continue
            agent_id, topic = parse_channel(self.exp_id, channel)
            if agent_id is None:
                plain.append(build_channel(self.exp_id, agent_id, topic))
            else:
                added.setdefault(topic, set()).add(agent_id)
        wider = {topic: AgentSet.of(agents) for topic, agents in added.items()}
        return replace(
            self,
            agents=self._widened(wider),
            plain=tuple(dict.fromkeys([*self.plain, *plain])),
            globs=tuple(dict.fromkeys([*self.globs, *globs])),
            fresh=self._fresh(wider, plain),
            fresh_globs=tuple(globs),
        )

    def with_agents(self, agents: Iterable[AgentId], subtopics: Sequence[str], owner: str) -> "SubscriptionSpec":
        """Return the spec with more agents. The new spec claims all its agents exclusively.

        Raises: InvalidAddress for an invalid id or subtopic.
        """
        hosted = AgentSet.of(agents)
        added = {check_subtopic(subtopic): hosted for subtopic in subtopics}
        wider, fresh = self._widened(added), self._fresh(added, ())
        return replace(self, agents=wider, exclusive=True, owner=owner, fresh=fresh, fresh_globs=())

    def hosting(self, record: MailboxRecord) -> "SubscriptionSpec":
        """Return a copy of this spec that has the agents of a mailbox's record on the server, and no others."""
        here = record.by_subtopic()
        return replace(self, agents=here, moved=record.moved, fresh=self._fresh(here, ()), fresh_globs=())

    @property
    def hosted(self) -> AgentSet:
        """Return all agents of the spec."""
        found = NO_AGENTS
        for agents in self.agents.values():
            found |= agents
        return found

    def channels_of(self, agents: AgentSet) -> ChannelSet:
        """Return the channels of some agents of the spec."""
        return ChannelSet(self.exp_id, {topic: here & agents for topic, here in self.agents.items()})

    def _widened(self, added: dict[str, AgentSet]) -> dict[str, AgentSet]:
        return self.agents | {topic: self.agents.get(topic, NO_AGENTS) | agents for topic, agents in added.items()}

    def _fresh(self, added: dict[str, AgentSet], plain: Iterable[str]) -> ChannelSet:
        new = {topic: agents - self.agents.get(topic, NO_AGENTS) for topic, agents in added.items()}
        return ChannelSet(self.exp_id, new, dict.fromkeys(plain).keys() - set(self.plain))

    def record(self, name: str, settings: MessagingConfig) -> MailboxRecord:
        """Build the mailbox's record for the directory of mailboxes."""
        return MailboxRecord(
            name,
            claims_of(self.agents),
            [*self.plain],
            [*self.globs],
            self.exclusive,
            # A frame takes at most a quarter of the mailbox's limit. So it does not have to wait until the mailbox is
            # empty.
            max(1, min(settings.frame_rows, settings.mailbox_messages // 4, settings.inbox_messages // 4)),
            max(1024, min(settings.frame_bytes, settings.mailbox_bytes // 4)),
            self.moved,
        )


def check_claims(record: MailboxRecord, directory: Directory) -> None:
    """Raise AlreadyExists if another mailbox hosts an agent that a record claims exclusively."""
    if not record.exclusive:
        return
    taken = directory.owner_of(record.agents(), besides=record.mailbox)
    if taken is not None:
        agent_id, owner = taken
        raise AlreadyExists(
            f"agent {agent_id!r} is in group {owner!r} already: leave the agent out of {record.mailbox!r}, or remove "
            f"group {owner!r} first",
            kind="agent",
            value=agent_id,
            owner=owner,
        )
