"""OASIS' channel between agents and their platform (camel-oasis 0.2).

An action is a question to the platform's mailbox.
"""

import asyncio
import logging
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from itertools import count
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np

from ray_messaging.addressing.channels import AgentId, check_name
from ray_messaging.common.task_health import end
from ray_messaging.compat.versions import warn_unless_tested
from ray_messaging.config import MessagingConfig
from ray_messaging.conversations.answer_stream import Answers
from ray_messaging.conversations.conversation import not_asked
from ray_messaging.conversations.replies import blocked_among
from ray_messaging.default_limits_and_leases import ANSWER_TIMEOUT_S
from ray_messaging.embedded.local_server import LocalServer
from ray_messaging.errors import (
    InvalidAddress,
    InvalidColumns,
    InvalidPayload,
    MessagingError,
    NoAnswer,
    PayloadTooLarge,
    UnknownName,
)
from ray_messaging.message import Message
from ray_messaging.messager import Messager
from ray_messaging.model.fates import DELIVERED, FATES
from ray_messaging.receiving.call_checks import check_timeout

logger = logging.getLogger(__name__)

TESTED = "0.2"
ACTION = "action"  # the subtopic of actions and results
EXIT = "exit"
YIELD_S, CANCEL_S = 0.002, 0.1
# If one message of many is invalid, one of these errors is raised before any message is sent.
_REFUSED = (InvalidAddress, InvalidColumns, InvalidPayload, PayloadTooLarge)


class Channel:
    """The channel of an OASIS platform: `Platform(db_path, channel=Channel())`.

    Agents in other processes use a Channel of their own with the same arguments. A Channel is for one event loop.

    Args: `config`, `exp_id`, `message_interceptor` and `settings` are as for a Messager; without a config, this process
    starts a server for the channel. `name` is the id under which the platform gets actions. `timeout` is the most
    seconds to wait for a result (None: no limit); if the platform ends, the wait ends too. `window` is the most actions
    that the platform takes out of its mailbox at once. If the platform's process is killed, the actions that it has
    taken out are not done again. Actions that are still in the mailbox wait for a new platform process. `actions` has
    the names of the actions that the platform knows; None: OASIS' own actions, if OASIS is imported.
    """

    def __init__(
        self,
        config: object = None,
        exp_id: str = "oasis",
        message_interceptor: object = None,
        *,
        name: str = "platform",
        timeout: float | None = ANSWER_TIMEOUT_S,
        window: int = 100,
        actions: Collection[str] | None = None,
        settings: MessagingConfig | None = None,
    ) -> None:
        check_timeout(timeout)
        server = LocalServer() if config is None else config
        warn_unless_tested("camel-oasis", TESTED, "channel")
        self.name = check_name("platform", name)
        self._new_messager: Callable[[str | None], Messager] = lambda own: Messager(
            server, exp_id, message_interceptor, name=own, settings=settings
        )
        self._timeout = timeout
        self._window = window
        self._actions = actions
        # The agents' side.
        self._asker: Messager | None = None
        self._asked: dict[str, _Action] = {}
        self._numbers = count(1)
        self._questions = _Gathered(self._ask)
        self._collecting = set[asyncio.Task[None]]()
        # The platform's side.
        self._server: Messager | None = None
        self._platform: asyncio.Task[Any] | None = None
        self._taken = deque[Message]()
        self._in_hand: dict[str, Message] = {}
        self._results = _Gathered(self._reply)
        self._listening = asyncio.Event()  # not set while the platform's mailbox is being opened
        self._listening.set()
        self._yielded = 0.0
        self._leaving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the channel in this process.

        Actions that have no result yet, and agents that wait for results, get an error.
        """
        if self._leaving is not None:
            await self._leaving
        await self._leave("its channel was closed")
        for task in [*self._collecting]:
            await end(task)
        for action in self._asked.values():
            action.fail(action.no_result("this process closed its channel", self.name))
            action.result.exception()  # without this call, asyncio logs the error if nobody waits for the result
        asker, self._asker = self._asker, None
        if asker is not None:
            await asker.close()

    # -- the agents' side -----------------------------------------------------------------------------------------

    async def write_to_receive_queue(self, action_info: tuple[AgentId | None, Any, Any]) -> str:
        """Send an action, (agent_id, message, action). Return its message_id once the platform's mailbox has it.

        Raises: NoAnswer if there is no platform; QuestionBlocked if a rule blocks the action; otherwise
        the same errors as `Messager.ask`, such as MailboxFull and OutcomeUnknown.
        """
        agent_id, message, action = action_info
        result = asyncio.get_running_loop().create_future()
        asked = _Action(agent_id, str(getattr(action, "value", action)), message, result)
        message_id = str(next(self._numbers))
        self._asked[message_id] = asked
        await self._questions.put(asked).wait()
        if result.done() and (error := result.exception()):
            del self._asked[message_id]
            raise error
        return message_id

    async def read_from_send_queue(self, message_id: str) -> tuple[str, AgentId | None, Any]:
        """Wait for the result of an action; return (message_id, agent_id, result).

        Raises: NoAnswer if the action can have no result, or had none in time; UnknownName if no action has this
        message_id, or its result was read before.
        """
        asked = self._asked.get(message_id)
        if asked is None:
            raise UnknownName(
                f"no action has the message_id {message_id!r}, or its result was read before: read each result once",
                kind="action",
                value=message_id,
            )
        try:
            return message_id, asked.agent_id, await asked.result
        finally:
            self._asked.pop(message_id, None)

    async def _ask(self, actions: "list[_Action]") -> None:
        """Send actions. Those that cannot be sent get an error."""
        try:
            await self._listening.wait()
            if self._asker is None:
                asker = self._new_messager(None)
                await asker.init()
                self._asker = asker
            answers = await self._asker.ask_columns(
                [each.agent_id for each in actions],
                self.name,
                [{"action": each.action, "message": each.message} for each in actions],
                subtopic=ACTION,
                timeout=self._timeout,
            )
        except MessagingError as error:
            if len(actions) > 1 and isinstance(error, _REFUSED):  # one action is invalid, and so none was sent
                for each in actions:
                    await self._ask([each])
                return
            for each in actions:
                each.fail(error)
            return
        assert answers.receipts is not None
        for row in np.flatnonzero(~answers.receipts.sent).tolist():
            actions[row].fail(not_asked(self.name, answers.receipts[row], self._timeout))
        task = asyncio.create_task(self._collect(actions, answers), name="ray_messaging results of actions")
        self._collecting.add(task)
        task.add_done_callback(self._collecting.discard)

    async def _collect(self, actions: "list[_Action]", answers: Answers) -> None:
        """Give actions their results as they come, and an error to each action that can get no result."""
        read = 0
        while answers.asks_again():
            await answers.change()
            while read < len(answers.parts):
                places = answers.parts[read].places.tolist()
                for place, answer in zip(places, answers.messages(read), strict=True):
                    actions[place].end(answer.payload, self.name)
                read += 1
            for place, error in answers.errors.items():
                actions[place].fail(error)
        late = (
            f"platform {self.name!r} gave no result within {self._timeout} s. It may have carried out the action: "
            "look at its process"
        )
        for action in actions:
            action.fail(action.no_result(late, self.name))

    # -- the platform's side --------------------------------------------------------------------------------------

    async def receive_from(self) -> tuple[str, tuple[AgentId | None, Any, str]]:
        """Wait for the next action; return (message_id, (agent_id, message, action)).

        Unknown actions are answered with a failure and are not returned. If the calling task fails or is cancelled,
        the agents that wait get an error. Raises the same errors as `Messager.fetch_messages`, such as Fenced.
        """
        task = asyncio.current_task()
        if task is not None and task is not self._platform:
            self._platform = task
            task.add_done_callback(self._ended)
        if self._leaving is not None:
            await self._leaving
        while not self._taken:
            await self._take()
        message = self._taken.popleft()
        action, payload = message.payload["action"], message.payload["message"]
        if action == EXIT:  # OASIS' platform gives no result for this action
            self._results.put((message, {"result": None}))
            await self._leave("the platform was told to exit")
        else:
            self._in_hand[message.id] = message
        return message.id, (message.from_id, payload, action)

    async def send_to(self, message: tuple[str, AgentId | None, Any]) -> None:
        """Send the result of an action, (message_id, agent_id, result), to the agent that waits for it.

        Raises: UnknownName if no action with this message_id waits for its result.
        """
        message_id, _, result = message
        asked = self._in_hand.pop(message_id, None)
        if asked is None:
            raise UnknownName(
                f"no action with the message_id {message_id!r} waits for its result in this channel: send one result "
                "for each action that receive_from() has returned",
                kind="action",
                value=message_id,
            )
        self._results.put((asked, {"result": result}))
        # If the platform itself never awaits anything, the task that sends the results runs only during this sleep.
        if time.monotonic() > self._yielded + YIELD_S:
            await asyncio.sleep(0)
            self._yielded = time.monotonic()

    async def _take(self) -> None:
        """Wait for actions, and remove them from the mailbox.

        If the platform is killed, the removed actions do not come back, because the platform may have done some.
        """
        if self._server is None:
            self._server = self._new_messager(self.name)
            self._listening.clear()
            try:
                await self._server.init()
                await self._server.host_agents([self.name], [ACTION])
            finally:
                self._listening.set()
        found = await self._server.fetch_messages(limit=self._window, timeout=None, commit="acked")
        for message in found:
            if not message.expects_answer:
                logger.warning(
                    "message %s to platform %r is ignored, because it expects no answer, and so is no action",
                    message.id,
                    self.name,
                )
            elif problem := self._problem(message.payload):
                self._results.put((message, {"result": {"success": False, "error": problem}}))
            else:
                self._taken.append(message)
        await self._server.ack(found)

    def _problem(self, payload: object) -> str:
        """Return why a payload is not an action of this platform, or "" if it is one."""
        if not isinstance(payload, dict) or "message" not in payload or not isinstance(payload.get("action"), str):
            return 'a message to the platform has the form {"action": ..., "message": ...}'
        if self._actions is None and (oasis := sys.modules.get("oasis.social_platform.typing")):
            self._actions = {each.value for each in oasis.ActionType}
        if self._actions is None or payload["action"] in self._actions or payload["action"] == EXIT:
            return ""
        return f"the platform knows no action {payload['action']!r}: it knows {', '.join(sorted(self._actions))}"

    async def _reply(self, results: "list[tuple[Message, dict[str, Any]]]") -> None:
        """Send results. If a result is invalid, or a rule blocks it, the agent gets an error instead."""
        if self._server is None:
            return
        try:
            receipts = await self._server.reply_columns([one for one, _ in results], [result for _, result in results])
        except MessagingError as error:
            if len(results) > 1 and isinstance(error, _REFUSED):  # one result is invalid, and so none was sent
                for each in results:
                    await self._reply([each])
            elif isinstance(error, _REFUSED) and "error" not in results[0][1]:
                await self._reply([(results[0][0], {"error": f"its result cannot be sent: {error}"})])
            else:
                logger.exception("%d results could not be sent, so the agents wait for them in vain", len(results))
            return
        for row in blocked_among(receipts):
            message, result = results[row]
            if "error" not in result:
                await self._reply([(message, {"error": f"rule {receipts[row].rule!r} blocked its result"})])

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        """Close the platform's side of the channel after the platform's task has failed or was cancelled.

        After the action EXIT, that side is closed already.
        """
        self._platform = None
        # An event loop that is closing cancels all tasks, and should not begin a new one. So after a cancellation, the
        # task that closes the platform's side begins only if the loop still runs after CANCEL_S seconds.
        if task.cancelled():
            asyncio.get_running_loop().call_later(CANCEL_S, self._begin_to_leave, "it was cancelled")
        elif error := task.exception():
            self._begin_to_leave(repr(error))

    def _begin_to_leave(self, why: str) -> None:
        if self._platform is None and self._server is not None:
            leave = self._leave(f"the platform has ended: {why}")
            self._leaving = asyncio.create_task(leave, name="ray_messaging end of a platform")

    async def _leave(self, why: str) -> None:
        """Close the platform's mailbox, and send an error to waiting agents.

        Agents that ask later get an error at once.
        """
        for message in [*self._in_hand.values(), *self._taken]:
            self._results.put((message, {"error": why}))
        self._in_hand.clear()
        self._taken.clear()
        await self._results.sent()
        server, self._server = self._server, None
        if server is None:
            return
        try:
            await server.ack()
            await server.remove_agents([self.name])
        except MessagingError as error:
            logger.warning(
                "platform %r could not give up its mailbox, so agents wait for results in vain: %s", self.name, error
            )
        await server.close()


class _Action(NamedTuple):
    """An action of an agent that waits for its result."""

    agent_id: AgentId | None
    action: str
    message: Any
    result: "asyncio.Future[Any]"

    def __str__(self) -> str:
        return f"action {self.action!r} of agent {self.agent_id!r}"

    def end(self, answer: Any, platform: str) -> None:  # noqa: ANN401 - any JSON
        """Set the result from the platform's answer."""
        if "error" in answer:
            self.fail(self.no_result(answer["error"], platform))
        elif not self.result.done():
            self.result.set_result(answer["result"])

    def no_result(self, why: str, platform: str) -> NoAnswer:
        """Build the error for an action that gets no result. `why` is the reason."""
        return NoAnswer(why, agent=platform, question=str(self), timeout=None, fate=FATES[DELIVERED])

    def fail(self, error: MessagingError) -> None:
        """Set an error that names the action."""
        if not self.result.done():
            self.result.set_exception(type(error)(f"{self} has no result: {error}", **vars(error)))


T = TypeVar("T")


class _Gathered(Generic[T]):
    """A queue of items that one task sends, in order and many at a time.

    Items that are put while a send is under way wait for its end, and are then sent together.
    """

    def __init__(self, send: Callable[[list[T]], Awaitable[None]]) -> None:
        self._send = send
        self._items: list[T] = []
        self._event = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def put(self, item: T) -> asyncio.Event:
        """Let the task send an item soon; return an event that is set once the item is sent, or could not be sent."""
        self._items.append(item)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="ray_messaging actions")
        return self._event

    async def sent(self) -> None:
        """Wait until all items have been sent."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while self._items:
            items, event, self._items, self._event = self._items, self._event, [], asyncio.Event()
            try:
                await self._send(items)
            finally:
                event.set()
