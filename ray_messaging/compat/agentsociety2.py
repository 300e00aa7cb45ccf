"""agentsociety2's social space in a repeatable order: messages of one step are read in the next step.

AgentSociety 2 runs its agents concurrently, so they call its `SimpleSocialSpace` in any order, and no two runs are
equal. Here an agent sees the state at the end of the last step, and what it has done itself since then. At the end of a
step, the actions of all agents take effect, sorted by agent, and for each agent in the order in which it acted.

If a process of agents dies, Ray runs these agents again, and what they have already done in the present step is undone.
If the process of the social space dies after it has sent the messages of a step, and before it has saved its state, its
successor reads these messages from the server.
"""

import asyncio
import json
import logging
import uuid
from collections import defaultdict
from collections.abc import Sequence
from contextvars import copy_context
from datetime import datetime
from pathlib import Path
from typing import Any, Final, cast

from pydantic import BaseModel

from ray_messaging.cluster.messaging import Messaging
from ray_messaging.compat.versions import needs, warn_unless_tested
from ray_messaging.errors import PayloadTooLarge, TransactionError
from ray_messaging.messager import Messager
from ray_messaging.outgoing import Outgoing

with needs("AgentSociety 2", "agentsociety2"):
    from agentsociety2.contrib.env.simple_social_space import (  # type: ignore[import-not-found,unused-ignore]
        CreateGroupResponse,
        Group,
        JoinGroupResponse,
        LeaveGroupResponse,
        Message,
        ReceiveMessagesResponse,
        SendGroupMessageResponse,
        SendMessageResponse,
        SimpleSocialSpace,
    )
    from agentsociety2.env.base import EnvMeta, tool  # type: ignore[import-not-found,unused-ignore]
    from agentsociety2.storage.workspace_state import (  # type: ignore[import-not-found,unused-ignore]
        atomic_write_text,
    )

TESTED: Final = "2.9"

logger = logging.getLogger(__name__)

_STATE = "state/ENV_STATE.json"  # the file in which SimpleSocialSpace saves its own state
_MAILBOX = "agentsociety2"
# The beginning of the name of AgentSociety's context variable with the agent and the trace id of a request. There is
# one trace id for each agent and step.
_REQUEST = "envrouter_trace_ctx_"


class _Turn(BaseModel):
    """What an agent has done since the last step."""

    sent: list[tuple[list[int], Message]] = []  # each message with its recipients
    created: list[Group] = []
    joined: dict[int, bool] = {}  # by group: True if the agent has joined it, False if the agent has left it


class _InheritedTools(EnvMeta):  # type: ignore[misc,unused-ignore]  # without AgentSociety, mypy knows no class
    """Metaclass of an environment that inherits the tools of its base class. With EnvMeta it would not inherit them."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> type:
        made: type = super().__new__(cls, name, bases, namespace)
        for table in ("_registered_tools", "_readonly_tools", "_tool_kinds"):
            inherited = {key: value for base in reversed(bases) for key, value in getattr(base, table, {}).items()}
            setattr(made, table, inherited | getattr(made, table))
        return made


class OrderedSocialSpace(SimpleSocialSpace, metaclass=_InheritedTools):  # type: ignore[misc,unused-ignore]
    """AgentSociety's SimpleSocialSpace, but with messages that do not depend on the order in which agents run.

    Args: `agent_id_name_pairs` is the argument of SimpleSocialSpace. `experiment` is the name of a running experiment
    (None: no experiment). The experiment's rules judge each message at the end of the step, and the experiment's log
    records the message.
    """

    def __init__(self, agent_id_name_pairs: Sequence[Sequence[int | str]] = (), experiment: str | None = None) -> None:
        warn_unless_tested("agentsociety2", TESTED, "social space")
        super().__init__(agent_id_name_pairs)
        self._experiment = experiment
        self._messager: Messager | None = None
        self._turns: dict[int, _Turn] = defaultdict(_Turn)
        self._run = uuid.uuid4().hex  # this simulation's id; other simulations may use the same experiment
        # By agent: the trace id of the agent's step, and copies of the agent's unread messages and of its record in
        # `_turns`, as they were when this step began.
        self._attempts: dict[int, tuple[str, list[Message], _Turn]] = {}
        self._given_up: set[str] = set()
        self._in_step = False

    @property
    def t(self) -> datetime:
        """The time in the simulation, which the society sets when a step begins."""
        return self._t

    @t.setter
    def t(self, now: datetime) -> None:
        self._t, self._in_step = now, True

    @classmethod
    def init_description(cls) -> str:
        """Return a description of this class's arguments, for a program that configures a simulation."""
        text = "- experiment (str | None): The name of a running ray_messaging experiment, for its rules and its log."
        return f"{super().init_description()}\n**Optional:**\n{text}\n"

    # -- what agents do in a step ---------------------------------------------------------------------------------

    def _turn(self, agent_id: int) -> _Turn:
        """Return the record of what an agent has done since the last step. The caller may change the record.

        If another process had begun the agent's step and died, the agent's record and unread messages from before the
        step are restored first.

        Raises: RuntimeError if another process has begun the step again, so that this process is too late.
        """
        found = [value for variable, value in copy_context().items() if variable.name.startswith(_REQUEST)]
        trace, _, actor = found[0] if found else (None, None, None)
        if trace in self._given_up:
            raise RuntimeError(
                f"agent {agent_id} has begun this step again in another process, so what it does in this process is "
                "ignored"
            )
        if trace and actor == agent_id and self._in_step:
            if self._attempts.get(agent_id, (trace,))[0] != trace:
                begun, self._mailboxes[agent_id], self._turns[agent_id] = self._attempts.pop(agent_id)
                self._given_up.add(begun)
                logger.warning(
                    "agent %s begins its step at %s again: what it did before in this step is undone", actor, self.t
                )
            if agent_id not in self._attempts:
                now = self._mailboxes[agent_id].copy(), self._turns[agent_id].model_copy(deep=True)
                self._attempts[agent_id] = trace, *now
        return self._turns[agent_id]

    @tool(readonly=True, kind="observe")  # type: ignore[untyped-decorator,unused-ignore]
    async def receive_messages(self, agent_id: int) -> ReceiveMessagesResponse:
        """
        Receive all messages in an agent's mailbox that were sent before this step, to the agent or to its groups.

        :param agent_id: The ID of the agent

        :returns: Context containing all messages
        """
        self._turn(agent_id)
        return await super().receive_messages(agent_id)

    @tool(readonly=False)  # type: ignore[untyped-decorator,unused-ignore]
    async def send_message(self, sender_id: int, receiver_id: int, content: str) -> SendMessageResponse:
        """
        Send a message to an agent's mailbox. The agent reads it in the next step.

        :param sender_id: The ID of the sender agent
        :param receiver_id: The ID of the receiver agent
        :param content: The content of the message

        :returns: Context containing message details
        """
        async with self._lock:
            self._send(sender_id, [receiver_id], content)
        return SendMessageResponse(sender_id=sender_id, receiver_id=receiver_id, content=content)

    @tool(readonly=False)  # type: ignore[untyped-decorator,unused-ignore]
    async def send_group_message(self, sender_id: int, group_id: int, content: str) -> SendGroupMessageResponse:
        """
        Send a message to all members of a group, including the sender. They read it in the next step.

        If the sender is not a member, nothing is sent.

        :param sender_id: The ID of the sender agent
        :param group_id: The ID of the group
        :param content: The content of the message

        :returns: The message's details, with the number of its recipients
        """
        async with self._lock:
            members = self._members(group_id, sender_id)
            if members := members if sender_id in members else []:
                self._send(sender_id, members, content, group_id)
        return SendGroupMessageResponse(
            sender_id=sender_id, group_id=group_id, content=content, recipient_count=len(members)
        )

    @tool(readonly=False)  # type: ignore[untyped-decorator,unused-ignore]
    async def create_group(self, creator_id: int, name: str, init_members: list[int]) -> CreateGroupResponse:
        """
        Create a new group. The other members can write to it from the next step on.

        :param creator_id: The ID of the agent creating the group
        :param name: The name of the group
        :param init_members: The initial members of the group

        :returns: Context containing group details
        """
        agents = sorted(self._agent_names)
        if creator_id not in agents:
            raise ValueError(f"agent {creator_id} cannot create a group: it is not in agent_id_name_pairs")
        async with self._lock:
            created = self._turn(creator_id).created
            # The ids of new groups depend on the agent, and not on which agent creates a group first.
            group_id = self._next_group_id + agents.index(creator_id) + len(created) * len(agents)
            members = [*dict.fromkeys([creator_id, *init_members])]
            created.append(Group(group_id=group_id, name=name, members=members))
        return CreateGroupResponse(creator_id=creator_id, group_id=group_id, name=name)

    @tool(readonly=False)  # type: ignore[untyped-decorator,unused-ignore]
    async def join_group(self, agent_id: int, group_id: int) -> JoinGroupResponse:
        """Join an agent to a group. From the next step on, the agent gets what others write to the group.

        :param agent_id: The ID of the agent
        :param group_id: The ID of the group

        :returns: Context containing group and agent details
        """
        async with self._lock:
            self._turn(agent_id).joined[group_id] = True
        return JoinGroupResponse(agent_id=agent_id, group_id=group_id)

    @tool(readonly=False)  # type: ignore[untyped-decorator,unused-ignore]
    async def leave_group(self, agent_id: int, group_id: int) -> LeaveGroupResponse:
        """Remove an agent from a group. From the next step on, the agent gets nothing that others write to the group.

        :param agent_id: The ID of the agent
        :param group_id: The ID of the group

        :returns: Context containing group and agent details
        """
        async with self._lock:
            self._turn(agent_id).joined[group_id] = False
        return LeaveGroupResponse(agent_id=agent_id, group_id=group_id)

    def _send(self, sender: int, recipients: list[int], content: str, group_id: int | None = None) -> None:
        message = Message(sender_id=sender, content=content, timestamp=self.t, message_id=0, group_id=group_id)
        self._turn(sender).sent.append((recipients, message))

    def _members(self, group_id: int, agent_id: int) -> list[int]:
        """Return a group's members as an agent sees them, or [] if there is no such group."""
        turn = self._turn(agent_id)
        group = {each.group_id: each for each in turn.created}.get(group_id, self._groups.get(group_id))
        return [] if group is None else _changed(group.members, agent_id, turn.joined.get(group_id))

    # -- the end of a step ----------------------------------------------------------------------------------------

    async def step(self, tick: int, t: datetime) -> None:
        """Deliver the messages that agents have sent, and apply their changes of groups.

        Raises: the same errors as `Messager.send_messages`, such as MailboxFull and OutcomeUnknown.
        """
        async with self._lock:
            turns = sorted(self._turns.items())
            sent = [each for _, turn in turns for each in turn.sent]
            for number, (_, message) in enumerate(sent, self._next_message_id):
                message.message_id = number
            for recipient, message in await self._passed(sent, t):
                self._mailboxes[recipient].append(message)
            self._next_message_id += len(sent)
            self._total_messages_sent += len(sent)
            created = {group.group_id: group for _, turn in turns for group in turn.created}
            self._groups |= created
            if created:
                self._next_group_id = max(created) + 1
            for agent_id, turn in turns:
                for group in [self._groups[each] for each in turn.joined if each in self._groups]:
                    group.members = _changed(group.members, agent_id, turn.joined[group.group_id])
            self._turns.clear()
            self._attempts.clear()
        await super().step(tick, t)
        self._in_step = False

    async def _passed(self, sent: list[tuple[list[int], Message]], t: datetime) -> list[tuple[int, Message]]:
        """Send messages through the experiment; return pairs of a recipient and a message that no rule has blocked.

        Without an experiment, return all pairs.
        """
        if self._experiment is None:
            return [(recipient, message) for recipients, message in sent for recipient in recipients]
        if self._messager is None:
            messaging = await asyncio.to_thread(Messaging.connect, self._experiment)
            self._messager = await messaging.open_messager(_MAILBOX, [*self._agent_names], subtopics=["agent-chat"])
        outgoing = [Outgoing.to_agents(to, message.model_dump(mode="json"), message.sender_id) for to, message in sent]
        step = json.dumps([self._run, self._step_counter, t.isoformat()]).encode()
        await self._messager.ack()
        async with self._messager.transaction() as tx:
            if tx.state == step:
                logger.warning(
                    "the messages of the step at %s were sent before its process died, so they are not sent again", t
                )
            else:
                # Messages that are still in the mailbox are fetched and dropped, because they are in the restored state
                # already, or belong to another run.
                await tx.fetch_messages(complete=True)
                try:
                    tx.send_messages(outgoing)
                # The messages are too many for a transaction. If this process dies here, they are sent twice.
                except (TransactionError, PayloadTooLarge):
                    await self._messager.send_messages(outgoing)
                tx.state = step
        # `to_workspace` commits these messages, after it has saved a state that contains them.
        found = await self._messager.fetch_messages(complete=True, commit="acked")
        passed = [(cast("int", each.to_id), Message.model_validate(each.payload)) for each in found]
        # The messages are sorted, because a message that waited for a slow rule arrives after later messages.
        return sorted(passed, key=lambda each: each[1].message_id)

    async def close(self) -> None:
        """Leave the experiment."""
        if self._messager is not None:
            await self._messager.close()

    # -- the state ------------------------------------------------------------------------------------------------

    async def to_workspace(self, workspace_path: Path | None = None) -> None:
        """Write the state, with messages that nobody has read, as SimpleSocialSpace does."""
        if workspace_path is not None:
            self._bind_workspace(workspace_path)
        if self._workspace_root is None:
            raise RuntimeError("no workspace is bound: call to_workspace(path)")
        async with self._lock:
            state = {
                "mailboxes": {
                    to: [each.model_dump(mode="json") for each in box] for to, box in self._mailboxes.items()
                },
                "groups": {number: group.model_dump(mode="json") for number, group in self._groups.items()},
                "next_group_id": self._next_group_id,
                "next_message_id": self._next_message_id,
                "agent_names": self._agent_names,
                "step_counter": self._step_counter,
                "total_messages_sent": self._total_messages_sent,
                "run": self._run,
                "turns": {agent: turn.model_dump(mode="json") for agent, turn in self._turns.items()},
            }
        atomic_write_text(self._workspace_root / _STATE, json.dumps(state, ensure_ascii=False, indent=2))
        if self._messager is not None:
            await self._messager.ack()
            async with self._messager.transaction() as tx:
                tx.state = None  # so that a process that restores an earlier state sends all later messages again

    async def restore(self, workspace_path: Path) -> bool:
        """Read a state that this class, or SimpleSocialSpace, has saved; return whether there was one."""
        self._in_step = False
        if not await super().restore(workspace_path):
            await self.to_workspace()  # so that a process that replaces this one in the first step gets the same `_run`
            return False
        state = json.loads((self._workspace_root / _STATE).read_text(encoding="utf-8"))
        turns, self._run = state.get("turns", {}), state.get("run", self._run)
        self._turns = defaultdict(_Turn, {int(agent): _Turn.model_validate(turn) for agent, turn in turns.items()})
        return True


def _changed(members: list[int], agent_id: int, joined: bool | None) -> list[int]:  # noqa: FBT001 - it has three values
    """Return a group's members after an agent has joined it (True), has left it (False), or neither (None)."""
    if joined and agent_id not in members:
        return [*members, agent_id]
    return [each for each in members if each != agent_id or joined is not False]
