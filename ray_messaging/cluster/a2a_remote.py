"""An outside agent that has an id in the experiment. It is called by the Agent2Agent protocol (A2A)."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import finalize

import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.types import AgentCard, GetTaskRequest, Role, SendMessageRequest, StreamResponse, Task, TaskState
from a2a.types import Message as A2AMessage

from ray_messaging.addressing.channels import AgentId, check_id
from ray_messaging.cluster.a2a_parts import parts_of, payload_of
from ray_messaging.cluster.handles.own_loop import SharedLoop
from ray_messaging.common.sockets import is_http_address
from ray_messaging.common.texts import printable
from ray_messaging.errors import ConfigError, MessagingError, PayloadTooLarge
from ray_messaging.model.call_content import by_content

if TYPE_CHECKING:
    from ray_messaging.cluster.handles.group.group import Group
    from ray_messaging.cluster.messaging import Messaging
    from ray_messaging.cluster.run.agent import Agent
    from ray_messaging.message import Message
    from ray_messaging.messages import Messages

_MOST_BYTES = 4 << 20  # how many bytes a response may have at most
_CONNECT_S = 10.0
_PORTS = {"http": 80, "https": 443}  # the ports of URLs that name no port
_POLL_S = 1.0  # seconds between two requests that ask whether a task has ended
_ERROR_WIDTH = 500
_CONCURRENCY = 100  # how many messages of one process may wait at a time for answers of an outside agent
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]")
_ENDED = {
    TaskState.TASK_STATE_COMPLETED,
    TaskState.TASK_STATE_INPUT_REQUIRED,  # the agent asks a question in return, which counts as its answer
}
_FAILED = {
    TaskState.TASK_STATE_FAILED,
    TaskState.TASK_STATE_CANCELED,
    TaskState.TASK_STATE_REJECTED,
    TaskState.TASK_STATE_AUTH_REQUIRED,
}
WAITING = "waiting"  # the key in `me.state` for the messages that the outside agent has not answered yet
ANSWERS = "answers"  # under this key, an answer sent as an ordinary message has the answered message's id


class RemoteFailure(Exception):
    """The outside agent has not answered, or its answer cannot be read."""


class RemoteAgent(AbstractContextManager["RemoteAgent"]):
    """An agent of another program, called by the Agent2Agent protocol (A2A), that has an id in the experiment.

    In an experiment with steps this object is passed to `messaging.run` as the model of the agent.

    Args: `experiment` is the name of the experiment. The other arguments are as for `Messaging.remote_agent`.
    """

    def __init__(
        self, agent: AgentId, url: str, *, experiment: str, token: str | None, wait_s: float, late_steps: int
    ) -> None:
        if not is_http_address(url):
            raise ConfigError(f"{url!r} is not the URL of an agent: write http(s)://host[:port]/path", value=url)
        if urlsplit(url).username is not None:
            raise ConfigError(
                "the URL of the agent has a user name or a password, which errors would show: leave both out, and pass "
                "token="
            )
        if not wait_s > 0:
            raise ConfigError(f"wait_s={wait_s} must be a number of seconds above 0")
        if late_steps < 0:
            raise ConfigError(f"late_steps={late_steps} must be a number of steps, 0 or more")
        self.id = check_id(agent)
        self.url = url
        self._experiment = experiment
        self._token = token
        self._wait_s = wait_s
        self._late_steps = late_steps
        self._reset()

    def _reset(self) -> None:
        self._group: Group | None = None
        self._leave: Callable[[], None] | None = None
        self._loop: SharedLoop | None = None
        self._life: finalize[Any, Any] | None = None
        self._asked: dict[str, Future[dict[str, Any]]] = {}  # by a message's id: the outside agent's answer to it
        self._tasks: dict[str, str] = {}  # by a message's id: the id of the outside agent's task for it
        self._serving: Future[None] | None = None
        self._card: AgentCard | None = None  # the outside agent's card, if the last call with it succeeded
        self._places = asyncio.Semaphore(_CONCURRENCY)

    def __getstate__(self) -> dict[str, Any]:
        left_out = ("_loop", "_life", "_asked", "_tasks", "_serving", "_group", "_leave", "_card", "_places")
        return {name: value for name, value in vars(self).items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._reset()

    def __repr__(self) -> str:
        return f"RemoteAgent({self.id!r}, {self.url})"

    @property
    def __name__(self) -> str:
        return f"remote agent {self.id}"

    def _own_loop(self) -> SharedLoop:
        if self._loop is None:
            self._loop = SharedLoop("remote agent")
            self._loop.enter()
            self._life = finalize(self, self._loop.leave)  # in a group's process nobody calls `close`
        return self._loop

    # -- outside of steps -----------------------------------------------------------------------------------------

    def serve(self, messaging: "Messaging") -> None:
        """Make a group that hosts the agent.

        A thread of this process handles the agent's messages until `close` is called.
        """
        name = f"remote-{_NO_NAME.sub('-', str(self.id))}"
        self._group = messaging.create_group(name, [self.id])
        self._leave = partial(messaging.remove_group, name)
        self._serving = self._own_loop().begin(self._group.aio.serve(self._handle, concurrency=_CONCURRENCY))

    async def _handle(self, message: "Message") -> dict[str, Any] | None:
        try:
            async with asyncio.timeout(self._wait_s):
                answer = await self._talk(message.id, _payload(message), None)
        except TimeoutError as error:
            raise RemoteFailure(
                f"{self!r} has not answered within {self._wait_s:g} s: check that it runs, or raise wait_s="
            ) from error
        except Exception as error:  # The outside agent may send anything.
            raise RemoteFailure(_said(error)) from error
        if message.expects_answer:
            return answer
        if message.from_id is not None:
            assert self._group is not None
            await self._group.aio.send(self.id, message.from_id, answer | {ANSWERS: message.id})
        return None

    def close(self) -> None:
        """Remove the group that hosts the agent, and stop waiting for its answers. A second call does nothing."""
        if self._loop is None:
            return
        for future in (self._serving, *self._asked.values()):
            if future is not None:
                future.cancel()
        assert self._life is not None
        self._life.detach()
        self._loop.leave(_end_others())
        if self._leave is not None:
            with suppress(MessagingError):  # The experiment may have ended.
                self._leave()
        self._reset()

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- in steps -------------------------------------------------------------------------------------------------

    async def __call__(self, me: "Agent", inbox: "Messages") -> None:
        """Pass the messages of a step on to the outside agent, and send the agent's answers to the messages' senders.

        If the agent does not answer a message within `wait_s` seconds, a later answer is sent on in one of the next
        `late_steps` steps. If there is no answer by then, the sender gets an error as the answer. If the sender is the
        user, who takes part in no steps, the error is sent in this step.

        The agent's answers, and the fact that an answer was late, are remembered. So they are the same if the step runs
        again, and in a fork.
        """
        new = {message.id: message for message in inbox}
        open_ones: list[list[Any]] = [*me.state.pop(WAITING, [])]
        open_ones += [[id_, one.from_id, _payload(one), me.step, None] for id_, one in new.items()]

        async def ask_remote(message_id: str, payload: object, task: str | None, since: int) -> dict[str, Any]:
            return await self._within_limit(message_id, payload, task, wait=me.step == since)

        # With sample=None, equal calls share no result: a result "late" is valid only for the call that returned it.
        asks = by_content(ask_remote, sample=None)

        async def ask(message_id: str, payload: object, task: str | None, since: int) -> dict[str, Any]:
            try:
                return await me.remember(asks, message_id, payload, task, since)
            except PayloadTooLarge as error:
                return {"error": _said(error)}

        found = await asyncio.gather(*(ask(id_, payload, task, since) for id_, _, payload, since, task in open_ones))
        waiting = []
        for (id_, sender, payload, since, _), outcome in zip(open_ones, found, strict=True):
            if "late" in outcome and (me.step - since >= self._late_steps or sender is None):
                outcome = {"error": f"{self!r} has not answered in time"}  # noqa: PLW2901 - the same message's outcome
                self._forget(id_)
            if "late" in outcome:
                waiting.append([id_, sender, payload, since, outcome["late"]])
                continue
            answer = outcome["answer"] if "answer" in outcome else {"error": outcome["error"]}
            try:
                _pass_on(me, new.get(id_), id_, sender, answer)
            except MessagingError as error:  # What an outside agent says must not end the run.
                _pass_on(me, new.get(id_), id_, sender, {"error": _said(error)})
        if waiting:
            me.state[WAITING] = waiting
            me.stay_active()

    async def _within_limit(self, message_id: str, payload: object, task: str | None, *, wait: bool) -> dict[str, Any]:
        """Ask the outside agent. Return {"answer": payload of its answer}, or {"error": text}.

        If there is no answer yet, return {"late": id of the outside agent's task} (None: no task is known).

        Args: with `wait`, wait for the answer up to the time limit.
        """
        if message_id not in self._asked:
            self._asked[message_id] = self._own_loop().begin(self._outcome(message_id, payload, task))
        future = self._asked[message_id]
        if wait:
            await _ended(future, self._wait_s)
        if not future.done():
            return {"late": self._tasks.get(message_id)}
        outcome = future.result()
        self._forget(message_id)
        return outcome

    async def _outcome(self, message_id: str, payload: object, task: str | None) -> dict[str, Any]:
        try:
            return {"answer": await self._talk(message_id, payload, task)}
        except Exception as error:  # noqa: BLE001 - the outside agent may send anything
            return {"error": _said(error)}

    def _forget(self, message_id: str) -> None:
        self._tasks.pop(message_id, None)
        if (future := self._asked.pop(message_id, None)) is not None:
            future.cancel()

    # -- the protocol ---------------------------------------------------------------------------------------------

    async def _talk(self, message_id: str, payload: object, task: str | None) -> dict[str, Any]:
        """Return the payload of the outside agent's answer to a message.

        If `task` is given, the outside agent has this task for the message, so the message is not sent again.
        """
        async with self._places, self._client() as client:
            if task is not None:
                return await _result(client, await client.get_task(GetTaskRequest(id=task)))
            # An earlier process may have sent this message already. The outside agent recognises a repeated message by
            # the message's id. The id includes the experiment's name, because messages of other experiments and of
            # forks often have equal ids.
            sent_id = f"{self._experiment}/{self.id}/{message_id}"
            message = A2AMessage(message_id=sent_id, role=Role.ROLE_USER, parts=parts_of(payload))
            known: Task | None = None
            async for event in client.send_message(SendMessageRequest(message=message)):
                if event.HasField("message"):
                    return payload_of(event.message.parts)
                known = _task_after(event, known)
                self._tasks[message_id] = known.id
                if known.status.state in _ENDED | _FAILED:
                    return _answer(known)
            if known is None:
                raise RemoteFailure("the agent's response has neither an A2A message nor an A2A task")
            return await _result(client, known)

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        # Responses must not be compressed: their size limit counts the bytes that arrive, and decompressed content
        # could be far larger.
        headers = {"accept-encoding": "identity"}
        headers |= {} if self._token is None else {"authorization": f"Bearer {self._token}"}
        timeout = httpx.Timeout(None, connect=_CONNECT_S)
        async with httpx.AsyncClient(headers=headers, timeout=timeout, transport=_Bounded()) as http:
            card = self._card or await A2ACardResolver(http, self.url).get_agent_card()
            self._card = None
            for interface in card.supported_interfaces:
                if _origin(interface.url) != _origin(self.url):
                    raise RemoteFailure(
                        f"the agent's card leads to {interface.url}, but its scheme, host and port must be those of "
                        f"{self.url}, so that another host does not get the token: correct the card or the agent's URL"
                    )
            async with ClientFactory(ClientConfig(httpx_client=http)).create(card) as client:
                yield client
            self._card = card


def _pass_on(
    me: "Agent", new: "Message | None", message_id: str, sender: AgentId | None, answer: dict[str, Any]
) -> None:
    """Send an answer to the sender of a message.

    `new` is the message, or None if it was read in an earlier step. `answer` is the payload of the answer.
    """
    if new is not None and new.expects_answer:
        me.reply(new, answer)
    elif sender is not None:
        me.send(sender, answer | {ANSWERS: message_id})


async def _ended(future: Future[Any], wait_s: float) -> None:
    """Wait until a future is done, but at most `wait_s` seconds. This event loop may end before the future is done."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()

    def tell(_: object) -> None:
        with suppress(RuntimeError):  # raised if the loop has been closed
            loop.call_soon_threadsafe(ended.set)

    future.add_done_callback(tell)
    with suppress(TimeoutError):
        async with asyncio.timeout(wait_s):
            await ended.wait()


def _payload(message: "Message") -> Any:  # noqa: ANN401 - in JSON's types
    return message.payload


def _said(error: Exception) -> str:
    name = "" if isinstance(error, RemoteFailure | MessagingError) else f"{type(error).__name__}: "
    return printable(f"{name}{error}")[:_ERROR_WIDTH]


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


def _task_after(event: StreamResponse, known: Task | None) -> Task:
    """Return a task as it is after an event of its stream. `known` is the task before the event (None: not known)."""
    if event.HasField("task"):
        return event.task
    of_status = event.HasField("status_update")
    if not of_status and not event.HasField("artifact_update"):
        raise RemoteFailure("the agent's response has neither an A2A message nor an A2A task")
    update = event.status_update if of_status else event.artifact_update
    task = known or Task(id=update.task_id, context_id=update.context_id)
    if of_status:
        task.status.CopyFrom(event.status_update.status)
        return task
    new = event.artifact_update.artifact
    same = next((each for each in task.artifacts if each.artifact_id == new.artifact_id), None)
    if same is None:
        task.artifacts.append(new)
    elif event.artifact_update.append:
        same.parts.extend(new.parts)
    else:
        same.CopyFrom(new)
    return task


async def _result(client: Client, task: Task) -> dict[str, Any]:
    """Return the payload of a task's answer, once the task has ended."""
    while task.status.state not in _ENDED | _FAILED:
        await asyncio.sleep(_POLL_S)
        task = await client.get_task(GetTaskRequest(id=task.id))
    return _answer(task)


def _answer(task: Task) -> dict[str, Any]:
    parts = [part for artifact in task.artifacts for part in artifact.parts] or [*task.status.message.parts]
    if task.status.state in _FAILED:
        why = TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower()
        text = " ".join(part.text for part in task.status.message.parts if part.text)
        raise RemoteFailure(f"the agent's A2A task is {why}{f': {text}' if text else ''}")
    if not parts:
        raise RemoteFailure("the agent's A2A task has ended without an answer")
    return payload_of(parts)


class _Bounded(httpx.AsyncHTTPTransport):
    """An HTTP transport that refuses responses that are too large or compressed.

    A compressed response is refused because the size of its decompressed content is not known in advance.
    """

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request and return its response. Reading the body raises RemoteFailure if the body is too large.

        Raises: RemoteFailure if the response is compressed.
        """
        response = await super().handle_async_request(request)
        if (encoding := response.headers.get("content-encoding", "identity").lower()) != "identity":
            await response.aclose()
            raise RemoteFailure(
                f"the agent's response is compressed ({encoding[:20]}), although the request did not ask for that"
            )
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _BoundedStream(response.stream)
        return response


class _BoundedStream(httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for data in self._stream:
            size += len(data)
            if size > _MOST_BYTES:
                raise RemoteFailure(f"the agent's response has more than {_MOST_BYTES:,} bytes, which is the limit")
            yield data

    async def aclose(self) -> None:
        await self._stream.aclose()


async def _end_others() -> None:
    """End all tasks of this event loop except the one that calls this."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
