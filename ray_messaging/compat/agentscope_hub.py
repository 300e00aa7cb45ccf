"""AgentScope 1's MsgHub for agents in several processes, which hear each other.

Each process enters a hub of the same name. It passes its own agents as objects, and agents of other processes by their
ids. The reply of an agent goes to all other agents as messages of the experiment. The experiment's rules judge these
messages, and its log has them. If a process was killed, its messages wait for its successor.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

from ray_messaging.addressing.channels import AGENT_CHAT, AgentId, check_id
from ray_messaging.common.backoff import ACTOR_RECONNECT, Backoff
from ray_messaging.common.task_health import end
from ray_messaging.compat.versions import needs, warn_unless_tested
from ray_messaging.errors import AnswerFailed, InvalidPayload, NoAnswer
from ray_messaging.message import Message
from ray_messaging.messager import Messager
from ray_messaging.model.fates import BLOCKED, FATES, STORED

with needs("AgentScope 1", "'agentscope<2'"):
    from agentscope.message import Msg  # type: ignore[import-not-found,unused-ignore]

TESTED: Final = "1.0.21"

logger = logging.getLogger(__name__)

Participant = Any  # an AgentScope agent, or the id of an agent in another process


class _Voice:
    """The only subscriber of an agent. It sends the agent's replies to all other participants."""

    def __init__(self, hub: "MsgHub", agent_id: AgentId) -> None:
        self._hub, self._agent_id = hub, agent_id

    async def observe(self, msg: Any) -> None:  # noqa: ANN401 - a Msg, or a list of them
        await self._hub._say(self._agent_id, msg)


class MsgHub:
    """A MsgHub like that of AgentScope 1, but with participants that may live in other processes.

    A `broadcast` ends when all participants have observed the message, and so does an agent's reply. A participant that
    has not observed the message within `timeout` seconds gets it later from its mailbox. A rule may block the message
    for some participants.

    Args:
        messager: The messager of this process. It hosts the agents of this process, and the hub fetches its messages.
        participants: Agents of this process, and ids of agents of other processes. The id of an agent is its `name`, or
            its `id` if it has no name.
        announcement: A message from the user to all participants at the start. Only one process should pass it.
        name: The hub's name, the same in each process.
    """

    def __init__(
        self,
        messager: Messager,
        participants: Sequence[Participant],
        announcement: Any = None,  # noqa: ANN401 - a Msg, or a list of them
        enable_auto_broadcast: bool = True,  # noqa: FBT001 - AgentScope's order
        name: str = "hub",
        *,
        timeout: float = 60.0,
    ) -> None:
        warn_unless_tested("agentscope", TESTED, "hub")
        self.name, self.announcement, self.enable_auto_broadcast = name, announcement, enable_auto_broadcast
        self._messager, self._timeout = messager, timeout
        self._here: dict[AgentId, Any] = {}  # by id, the agents of this process
        # By agent, a lock that makes the agent observe its messages in the order in which they arrive.
        self._turns: dict[AgentId, asyncio.Lock] = {}
        self.participants: list[AgentId] = []  # the ids of all participants
        self._join(participants)
        self._desk = f"{name}/{messager.name}"  # the id to which other processes confirm that an agent has observed
        self._asked: dict[str, asyncio.Future[list[str] | None]] = {}
        self._change: asyncio.Task[None] | None = None  # the task that reports changes to other processes

    async def __aenter__(self) -> Self:
        """Begin to receive messages for the agents of this process, and send the announcement."""
        await self._host([*self._here, self._desk])
        self._serving = asyncio.create_task(self._messager.serve(self._hear), name=f"ray_messaging hub {self.name}")
        self._subscribe()
        if self.announcement is not None:
            await self.broadcast(self.announcement)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop sending the replies of this process's agents, and stop receiving messages for these agents.

        Raises: the error of a change of participants that could not be reported to other processes; or the error
        because of which the hub has stopped receiving earlier.
        """
        self.enable_auto_broadcast = False
        self._subscribe()
        try:
            await self._settled()
        finally:
            failed = self._serving.done()
            await end(self._serving)
        if failed and error is None:
            self._serving.result()

    def add(self, new_participant: Participant | Sequence[Participant]) -> "asyncio.Task[None]":
        """Add agents of this process, or ids of agents of other processes.

        The returned task reports the new participants to the other processes. It waits at most `timeout` seconds for
        each confirmation, and logs a warning if one is missing.
        """
        return self._changed([*self.participants], self._join(_listed(new_participant)))

    def delete(self, participant: Participant | Sequence[Participant]) -> "asyncio.Task[None]":
        """Remove agents from the hub.

        The returned task reports the change to the other processes, and waits for the confirmations as in `add`. The
        processes of the removed agents need not confirm it.
        """
        before, gone = [*self.participants], {_id_of(each) for each in _listed(participant)}
        for unknown in gone - {*before}:
            logger.warning("agent %r is no participant of hub %s, so it need not be removed", unknown, self.name)
        self.participants = [each for each in before if each not in gone]
        return self._changed(before, [])

    async def broadcast(self, msg: Any) -> None:  # noqa: ANN401 - a Msg, or a list of them
        """Send messages to all participants, as the user."""
        await self._say(None, msg)

    def set_auto_broadcast(self, enable: bool) -> None:  # noqa: FBT001 - AgentScope's
        """Set whether, from now on, the replies of this process's agents go to all other participants."""
        self.enable_auto_broadcast = enable
        self._subscribe()

    async def _host(self, agents: list[AgentId]) -> None:
        await self._messager.host_agents(agents, [AGENT_CHAT], owner=self._messager.engine.receiving.owner)

    def _join(self, participants: Sequence[Participant]) -> list[AgentId]:
        """Add participants, and return the ids of those that are agents of this process."""
        for each in participants:
            agent_id = _id_of(each)
            if agent_id not in self.participants:
                self.participants.append(agent_id)
            if not isinstance(each, int | str):
                self._here[agent_id] = each
        return [_id_of(each) for each in participants if not isinstance(each, int | str)]

    def _subscribe(self) -> None:
        for agent_id, agent in self._here.items():
            if self.enable_auto_broadcast and agent_id in self.participants:
                agent.reset_subscribers(self.name, [_Voice(self, agent_id)])
            else:
                agent.reset_subscribers(self.name, [])

    def _changed(self, before: list[AgentId], hosted: list[AgentId]) -> "asyncio.Task[None]":
        self._subscribe()
        self._change = asyncio.create_task(self._tell_change(self._change, before, hosted))
        return self._change

    async def _settled(self) -> None:
        """Wait until the other processes know the participants; raise the error if they could not be told.

        The same error is raised only once.
        """
        change = self._change
        if change is not None:
            await asyncio.wait([change])
            if change.exception() is not None and change is self._change:
                self._change = None
                change.result()

    async def _tell_change(
        self, earlier: "asyncio.Task[None] | None", before: list[AgentId], hosted: list[AgentId]
    ) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])
        await self._host(hosted)
        news = {"hub": self.name, "participants": self.participants}
        await asyncio.gather(*(self._ask(None, each, news) for each in self.participants if each not in self._here))
        for each in {*before} - {*self.participants} - {*self._here}:
            # The agent's process may be gone, so nobody waits for a confirmation.
            await self._messager.send(None, each, news | {"desk": self._desk, "ticket": ""})

    async def _say(self, from_id: AgentId | None, msg: Any) -> None:  # noqa: ANN401 - a Msg, or a list of them
        await self._settled()
        texts = [each.to_dict() for each in msg] if isinstance(msg, list) else msg.to_dict()
        said = {"hub": self.name, "said": texts}
        await asyncio.gather(*(self._ask(from_id, each, said) for each in self.participants if each != from_id))

    async def _ask(self, from_id: AgentId | None, to_id: AgentId, payload: dict[str, Any]) -> None:
        """Send a payload to an agent, and wait until the agent confirms that it has observed the payload.

        If no confirmation arrives within `timeout` seconds, log a warning. If a rule blocks the payload, return at
        once. If no process hosts the agent yet, first wait, also at most `timeout` seconds, until a process does. The
        confirmation is a message of the user (from_id None), so that no rule between the two agents can block it.

        Raises: NoAnswer if no process hosts the agent in time; AnswerFailed if the agent could not observe the payload.
        """
        ticket, observed = secrets.token_hex(8), asyncio.get_running_loop().create_future()
        self._asked[ticket] = observed
        facts: dict[str, Any] = {"agent": to_id, "timeout": self._timeout}
        try:
            backoff = Backoff(ACTOR_RECONNECT, deadline=time.monotonic() + self._timeout)
            while True:
                receipt = await self._messager.send(from_id, to_id, payload | {"desk": self._desk, "ticket": ticket})
                if receipt.fate == FATES[BLOCKED]:
                    return
                if receipt.fate in STORED:
                    break
                if backoff.exhausted:
                    raise NoAnswer(
                        f"no process hosts agent {to_id!r} of hub {self.name!r}: enter the hub in that agent's "
                        "process, or delete the agent from this hub",
                        question=receipt.message_id,
                        fate=receipt.fate,
                        **facts,
                    )
                await backoff.sleep()
            async with asyncio.timeout(self._timeout):
                failed = await observed
        except TimeoutError as error:
            if isinstance(error, NoAnswer):
                raise
            logger.warning("hub %s: agent %r has not yet observed the messages in its mailbox", self.name, to_id)
        else:
            if failed is not None:
                raise AnswerFailed(
                    f"agent {to_id!r} of hub {self.name!r} could not observe a message, which is a dead letter now: "
                    f"{': '.join(failed)}",
                    question=receipt.message_id,
                    fate=receipt.fate,
                    error=failed[0],
                    text=failed[1],
                    **facts,
                )
        finally:
            del self._asked[ticket]

    async def _hear(self, message: Message) -> None:
        to_id, said = message.to_id, message.payload
        if not isinstance(said, dict) or said.get("hub") != self.name or to_id is None:
            raise InvalidPayload(
                f"agent {to_id!r} got a message that hub {self.name!r} did not send: {str(said)[:200]}"
            )
        if to_id == self._desk:
            asked = self._asked.get(said["ticket"])  # None: nobody waits for this confirmation any more
            if asked is not None and not asked.done():
                asked.set_result(said["failed"])
            return
        word: dict[str, Any] = {"hub": self.name, "ticket": said["ticket"], "failed": None}
        try:
            await self._take(to_id, said)
        except Exception as error:
            await self._messager.send(None, said["desk"], word | {"failed": [type(error).__name__, str(error)]})
            raise
        await self._messager.send(None, said["desk"], word)

    async def _take(self, to_id: AgentId, said: dict[str, Any]) -> None:
        if "participants" in said:
            self.participants = said["participants"]
            self._subscribe()
            return
        texts = said["said"]
        one = Msg.from_dict(texts) if isinstance(texts, dict) else [Msg.from_dict(each) for each in texts]
        async with self._turns.setdefault(to_id, asyncio.Lock()):
            await self._here[to_id].observe(one)


def _listed(given: Any) -> list[Any]:  # noqa: ANN401 - one object, or a sequence of them
    return [*given] if isinstance(given, list | tuple) else [given]


def _id_of(participant: Participant) -> AgentId:
    named = participant if isinstance(participant, int | str) else getattr(participant, "name", participant.id)
    return check_id(named)
