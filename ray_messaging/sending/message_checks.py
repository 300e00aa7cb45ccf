"""The checks of messages before they are accepted for sending."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ray_messaging.addressing.channels import OMITTED, AgentId, SenderId, check_id, check_recipient, parse_channel
from ray_messaging.addressing.directory import IdTable
from ray_messaging.errors import UnknownSender
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import INT, STR, IdColumn, encode_payload
from ray_messaging.outgoing import Outgoing
from ray_messaging.sending.bulk_input import ColumnChunk, batches_of, columns_of, no_from_id

_ADDRESSES_KEPT = 200_000
_KEPT = 200_000  # how many ids the cache `known` may hold; the number is limited, because each id takes 64 bytes


class CheckedMessage(NamedTuple):
    """One checked message. `line` is its payload as JSON."""

    from_id: AgentId | None
    to_id: AgentId | None
    topic: str
    line: bytes


class MessageChecks:
    """The checks of one messager's messages. All agents may send, until `allow_only` names the agents that may.

    Args: With `user_is_explicit`, a from_id of None always means the user, who is outside of the simulation. Without
    it, None may also mean that from_id was left out. If only some agents may send, a message with this None is refused.
    """

    def __init__(self, exp_id: str, name: str, payload_bytes: int, *, user_is_explicit: bool = False) -> None:
        self.addresses: dict[str, tuple[AgentId | None, str]] = {}  # a cache of parsed channels
        self.known: set[int] | None = None  # a cache of int ids that may send; None if all ids may send
        self._agents: AgentSet | None = None  # the agents that may send; None if all may
        self._ints: IdTable[np.bool_] | None = None  # the int ids among `_agents`; None if there are none
        self._name = name
        self._exp_id = exp_id
        self._payload_bytes = payload_bytes
        self._user_is_explicit = user_is_explicit

    def allow_only(self, agents: AgentSet) -> None:
        """Accept only messages of these agents, and of the agents that earlier calls have named."""
        self._set_allowed(agents if self._agents is None else self._agents | agents)

    def refuse(self, agents: AgentSet) -> None:
        """Remove agents from those that may send, so that later messages from them are refused.

        Before the first call of `allow_only` all agents may send, and this call changes nothing.
        """
        if self._agents is not None:
            self._set_allowed(self._agents - agents)

    def _set_allowed(self, agents: AgentSet) -> None:
        self.known, self._agents, ints = set(), agents, agents.ints
        self._ints = IdTable(ints, np.ones(len(ints), np.bool_)) if len(ints) else None

    def address(self, channel: str) -> tuple[AgentId | None, str]:
        """Return the agent and the topic of a channel. The agent is None if the channel belongs to no agent.

        Raises: InvalidAddress for an invalid channel.
        """
        known = self.addresses
        try:
            return known[channel]
        except KeyError:
            agent_id, topic = parse_channel(self._exp_id, channel)
        except TypeError:  # the argument has no hash, so it is no channel, and `parse_channel` raises the error
            return parse_channel(self._exp_id, channel)
        if len(known) >= _ADDRESSES_KEPT:
            known.clear()
        known[channel] = agent_id, topic  # a plain tuple can be unpacked fastest
        return agent_id, topic

    def checked(self, channel: str, payload: object, from_id: SenderId, to_id: AgentId | None) -> CheckedMessage:
        """Check a message and encode its payload.

        Raises: InvalidAddress for an invalid channel or id; UnknownSender if this messager may not send for from_id
        (see MessagingConfig.strict_senders); InvalidPayload or PayloadTooLarge for an invalid payload.
        """
        recipient, topic = self.address(channel)
        if to_id is not None and (to_id.__class__ is not int or to_id != recipient):
            recipient = check_recipient(channel, recipient, to_id)
        return self.addressed(from_id, recipient, topic, payload)

    def addressed(self, from_id: SenderId, to_id: AgentId | None, topic: str, payload: object) -> CheckedMessage:
        """Check a message to an address that is known to be valid.

        Raises: InvalidAddress for an invalid sender's id; UnknownSender if this messager may not send for from_id (see
        MessagingConfig.strict_senders); InvalidPayload or PayloadTooLarge for an invalid payload.
        """
        if from_id is None or from_id is OMITTED:
            if self._agents is not None and (from_id is OMITTED or not self._user_is_explicit):
                raise no_from_id(self._name)
            from_id = None
        else:
            from_id = check_id(from_id)
            self._check_sender(from_id)
        return CheckedMessage(from_id, to_id, topic, encode_payload(payload, self._payload_bytes))

    def batches(self, messages: Sequence[Outgoing], step: int | None) -> list[Batch]:
        """Check and encode messages; return them as batches, each within the limits of a batch.

        Raises: for the first invalid message, the same errors as `checked`, such as InvalidAddress and InvalidPayload.
        """
        group = None if self._agents is None else self._name
        batches = batches_of(messages, self.address, self._payload_bytes, step, group)
        self.check_senders(batch.from_ids for batch in batches)
        return batches

    def columns(self, from_ids: object, to_ids: object, payloads: object) -> list[ColumnChunk]:
        """Check and encode messages that are given as columns.

        Raises: the same errors as `checked`, such as InvalidAddress and InvalidPayload; InvalidColumns if the columns
        do not fit together.
        """
        chunks = columns_of(from_ids, to_ids, payloads, self._payload_bytes)
        self.check_senders(chunk.from_ids for chunk in chunks)
        return chunks

    def _check_sender(self, from_id: AgentId) -> None:
        """Raise UnknownSender if an agent may not send here."""
        known, agents = self.known, self._agents
        if known is None or agents is None or from_id in known:
            return
        if from_id not in agents:
            raise self._unknown(from_id)
        if isinstance(from_id, int):
            if len(known) >= _KEPT:
                known.clear()
            known.add(from_id)

    def check_senders(self, columns: Iterable[IdColumn]) -> None:
        """Raise UnknownSender if an id may not send here. The error names the first such id.

        The id None, which stands for the user, may always send.
        """
        agents, ints = self._agents, self._ints
        if agents is None:
            return
        for from_ids in columns:
            values, kinds = from_ids.values, from_ids.kinds
            sparse = None if ints is None or ints.dense is not None else ints
            if kinds is None and sparse is not None and sparse.look_up(np.sort(values)).all():
                continue  # sorted ids are found in a third of the time: they make better use of the processor's cache
            ours = np.zeros(len(values), np.bool_) if ints is None else ints.look_up(values)
            if kinds is not None:
                strings = np.array([name in agents.strings for name in from_ids.strings], np.bool_)
                ours[kinds != INT] = True
                named = np.flatnonzero(kinds == STR)
                ours[named] = strings[values[named]] if len(named) else True
            if not ours.all():
                raise self._unknown(from_ids[int(ours.argmin())])

    def _unknown(self, from_id: AgentId | None) -> UnknownSender:
        return UnknownSender(
            f"agent {from_id!r} is not in group {self._name!r}, so no message of this call was sent: send its "
            f"messages by its own group, messaging.group_of({from_id!r}); or let this group send for any agent: "
            "MessagingConfig(strict_senders=False)",
            value=from_id,
            group=self._name,
        )
