"""agentsociety2's social space with an order that repeats: messages of one step are read in the next.

AgentSociety 2 runs its agents at once, so that they call its `SimpleSocialSpace` in any order, and each run differs.
Here an agent sees what was there at the end of the last step, and what it has done itself since. The end of a step
takes over what all agents have done, ascending by agent, in the order in which each did it.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, cast

from pydantic import BaseModel

from ray_messaging.cluster.messaging import Messaging
from ray_messaging.compat.versions import warn_unless_tested
from ray_messaging.messager import Messager
from ray_messaging.outgoing import Outgoing

try:
    from agentsociety2.contrib.env.simple_social_space import (  # type: ignore[import-not-found,unused-ignore]
        CreateGroupResponse,
        Group,
        JoinGroupResponse,
        LeaveGroupResponse,
        Message,
        SendGroupMessageResponse,
        SendMessageResponse,
        SimpleSocialSpace,
    )
    from agentsociety2.env.base import EnvMeta, tool  # type: ignore[import-not-found,unused-ignore]
    from agentsociety2.storage.workspace_state import (  # type: ignore[import-not-found,unused-ignore]
        atomic_write_text,
    )
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"this is for programs of AgentSociety 2: pip install agentsociety2 (there is no module {missing.name!r})",
        name=missing.name,
    ) from missing

TESTED: Final = "2.9"

_STATE = "state/ENV_STATE.json"  # where SimpleSocialSpace keeps its own
_MAILBOX = "agentsociety2"


class _Turn(BaseModel):
    """What an agent has done since the last step."""

    sent: list[tuple[list[int], Message]] = []  # with the recipients of each message
    created: list[Group] = []
    joined: dict[int, bool] = {}  # by group: whether the agent has joined or left it


class _InheritedTools(EnvMeta):  # type: ignore[misc,unused-ignore]  # without AgentSociety, mypy knows no class
    """The class of an environment whose subclasses have its tools: those of EnvMeta have only their own."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> type:
        made: type = super().__new__(cls, name, bases, namespace)
        for table in ("_registered_tools", "_readonly_tools", "_tool_kinds"):
            inherited = {key: value for base in reversed(bases) for key, value in getattr(base, table, {}).items()}
            setattr(made, table, inherited | getattr(made, table))
        return made


class OrderedSocialSpace(SimpleSocialSpace, metaclass=_InheritedTools):  # type: ignore[misc,unused-ignore]
    """AgentSociety's SimpleSocialSpace, whose messages do not depend on the order in which agents run.

    Args: `agent_id_name_pairs` as SimpleSocialSpace takes them. `experiment` names a running experiment, whose rules
    judge each message at the end of its step, and whose log has it; None: no rules and no log.
    """

    def __init__(self, agent_id_name_pairs: Sequence[Sequence[int | str]] = (), experiment: str | None = None) -> None:
        warn_unless_tested("agentsociety2", TESTED, "social space")
        super().__init__(agent_id_name_pairs)
        self._experiment = experiment
        self._messager: Messager | None = None
        self._turns: dict[int, _Turn] = defaultdict(_Turn)

    @classmethod
    def init_description(cls) -> str:
        """Describe the arguments to a program that configures a simulation."""
        text = "- experiment (str | None): The name of a running ray_messaging experiment, for its rules and its log."
        return f"{super().init_description()}\n**Optional:**\n{text}\n"

    # -- what agents do in a step ---------------------------------------------------------------------------------

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

        :param sender_id: The ID of the sender agent
        :param group_id: The ID of the group
        :param content: The content of the message

        :returns: Context containing message details
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
            created = self._turns[creator_id].created
            # Each agent has numbers of its own, so that nobody's depend on who was first.
            group_id = self._next_group_id + agents.index(creator_id) + len(created) * len(agents)
            members = [*dict.fromkeys([creator_id, *init_members])]
            created.append(Group(group_id=group_id, name=name, members=members))
        return CreateGroupResponse(creator_id=creator_id, group_id=group_id, name=name)

    @tool(readonly=False)  # type: ignore[untyped-decorator,unused-ignore]
    async def join_group(self, agent_id: int, group_id: int) -> JoinGroupResponse:
        """
        Join an agent to a group. It gets what others write to the group from the next step on.

        :param agent_id: The ID of the agent
        :param group_id: The ID of the group

        :returns: Context containing group and agent details
        """
        async with self._lock:
            self._turns[agent_id].joined[group_id] = True
        return JoinGroupResponse(agent_id=agent_id, group_id=group_id)

    @tool(readonly=False)  # type: ignore[untyped-decorator,unused-ignore]
    async def leave_group(self, agent_id: int, group_id: int) -> LeaveGroupResponse:
        """
        Remove an agent from a group. It gets nothing that others write to the group from the next step on.

        :param agent_id: The ID of the agent
        :param group_id: The ID of the group

        :returns: Context containing group and agent details
        """
        async with self._lock:
            self._turns[agent_id].joined[group_id] = False
        return LeaveGroupResponse(agent_id=agent_id, group_id=group_id)

    def _send(self, sender: int, recipients: list[int], content: str, group_id: int | None = None) -> None:
        message = Message(sender_id=sender, content=content, timestamp=self.t, message_id=0, group_id=group_id)
        self._turns[sender].sent.append((recipients, message))
        self._total_messages_sent += 1

    def _members(self, group_id: int, agent_id: int) -> list[int]:
        """Return a group's members as an agent sees them, none if there is no such group."""
        turn = self._turns[agent_id]
        group = {each.group_id: each for each in turn.created}.get(group_id, self._groups.get(group_id))
        return [] if group is None else _changed(group.members, agent_id, turn.joined.get(group_id))

    # -- the end of a step ----------------------------------------------------------------------------------------

    async def step(self, tick: int, t: datetime) -> None:
        """Hand out what agents have sent, and take over their groups. Raises as `Messager.send_messages`."""
        async with self._lock:
            turns = sorted(self._turns.items())
            sent = [each for _, turn in turns for each in turn.sent]
            for number, (_, message) in enumerate(sent, self._next_message_id):
                message.message_id = number
            for recipient, message in await self._passed(sent):
                self._mailboxes[recipient].append(message)
            self._next_message_id += len(sent)
            created = {group.group_id: group for _, turn in turns for group in turn.created}
            self._groups |= created
            if created:
                self._next_group_id = max(created) + 1
            for agent_id, turn in turns:
                for group in [self._groups[each] for each in turn.joined if each in self._groups]:
                    group.members = _changed(group.members, agent_id, turn.joined[group.group_id])
            self._turns.clear()
        await super().step(tick, t)

    async def _passed(self, sent: list[tuple[list[int], Message]]) -> list[tuple[int, Message]]:
        """Return each recipient and its message, without those that a rule of the experiment blocks."""
        if self._experiment is None:
            return [(recipient, message) for recipients, message in sent for recipient in recipients]
        if self._messager is None:
            messaging = await asyncio.to_thread(Messaging.connect, self._experiment)
            self._messager = await messaging.open_messager(_MAILBOX, self._agent_names, subtopics=["agent-chat"])
            # What a dead process had sent is in the state that was restored, or its step runs again.
            await self._messager.fetch_messages(complete=True)
        await self._messager.send_messages(
            [Outgoing.to_agents(to, message.model_dump(mode="json"), message.sender_id) for to, message in sent]
        )
        found = await self._messager.fetch_messages(complete=True)
        await self._messager.ack()
        passed = [(cast("int", each.to_id), Message.model_validate(each.payload)) for each in found]
        # A message that a slow rule has judged later comes behind those of other agents.
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
                "turns": {agent: turn.model_dump(mode="json") for agent, turn in self._turns.items()},
            }
        atomic_write_text(self._workspace_root / _STATE, json.dumps(state, ensure_ascii=False, indent=2))

    async def restore(self, workspace_path: Path) -> bool:
        """Read a state, of this class or SimpleSocialSpace; return whether there was one."""
        if not await super().restore(workspace_path):
            return False
        turns = json.loads((self._workspace_root / _STATE).read_text(encoding="utf-8")).get("turns", {})
        self._turns = defaultdict(_Turn, {int(agent): _Turn.model_validate(turn) for agent, turn in turns.items()})
        return True


def _changed(members: list[int], agent_id: int, joined: bool | None) -> list[int]:  # noqa: FBT001 - None: neither
    """Return a group's members after an agent has joined or left it."""
    if joined and agent_id not in members:
        return [*members, agent_id]
    return [each for each in members if each != agent_id or joined is not False]
