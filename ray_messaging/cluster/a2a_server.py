"""Agents of an experiment for clients outside: a server of the Agent2Agent protocol (A2A).

The agent gets a client's message as a question of the user. The A2A task ends with the agent's answer.
"""

import asyncio
import hmac
import secrets
import socket
from collections.abc import Iterable
from contextlib import AbstractContextManager
from importlib.metadata import version
from urllib.parse import quote, urlsplit

import uvicorn
from a2a.helpers import new_task_from_user_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
    Task,
)
from a2a.types import Message as A2AMessage
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH, PROTOCOL_VERSION_CURRENT, TransportProtocol
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ray_messaging.addressing.channels import USER_CHAT, AgentId, check_id
from ray_messaging.cluster.a2a_parts import parts_of, payload_of
from ray_messaging.cluster.handles.connection import ExperimentConnection
from ray_messaging.cluster.handles.user_messager import UserMessager
from ray_messaging.common.task_health import logs_failure
from ray_messaging.errors import ConfigError, InvalidAddress, InvalidPayload, MessagingError, QuestionBlocked
from ray_messaging.messager import Messager

_MOST_BYTES = 4 << 20  # how many bytes a request may have, at most
_MOST_TASKS = 1_000  # how many tasks of each agent are kept for GetTask, at most
_MOST_ASKED = 1_000  # how many questions may wait at a time for answers of one agent
_MOST_REQUESTS = 1_000  # how many connections, and how many requests, there may be at a time
_GRACE_S = 1
_MODES = ["text/plain", "application/json"]


class A2AServer(AbstractContextManager["A2AServer"]):
    """A server in this process by which clients outside of the experiment ask its agents. `close` ends the server.

    A client needs `token` and `url_of(agent)`. `url` is the address of the server.
    """

    def __init__(
        self,
        connection: ExperimentConnection,
        agents: Iterable[AgentId],
        place: str,
        token: str | None,
        timeout: float,
    ) -> None:
        """Listen on the address `place`, "host:port", and serve.

        Raises: ConfigError if the address cannot be used, the token is empty, or `agents` is a str; InvalidAddress for
        an invalid id.
        """
        if token == "":
            raise ConfigError("an empty token lets everybody in: pass another token, or None for a random one")
        if isinstance(agents, str):
            raise ConfigError(f"agents={agents!r} is a str, and each of its letters would be an id: write [{agents!r}]")
        self.agents = frozenset(map(check_id, agents))
        self.token = secrets.token_urlsafe(32) if token is None else token
        self._socket, self.url = _bound(place)
        try:
            self._user = UserMessager(connection)
        except BaseException:
            self._socket.close()
            raise
        self._serving: asyncio.Task[None] | None = None
        app = _Guard(_application(self._user.messager, self.agents, connection.exp_id, timeout), self.token)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                access_log=False,
                log_level="warning",
                limit_concurrency=_MOST_REQUESTS,
                timeout_graceful_shutdown=_GRACE_S,
                lifespan="off",
            )
        )
        self._user.run(self._start())

    async def _start(self) -> None:
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="ray_messaging a2a")
        self._serving.add_done_callback(
            logs_failure(f"the A2A server at {self.url} has failed: clients get no answers")
        )

    async def _end(self, serving: asyncio.Task[None]) -> None:
        self._server.should_exit = True
        await asyncio.wait([serving])  # unlike `await serving`, this raises no error, so that `close` goes on

    def url_of(self, agent: AgentId) -> str:
        """Return an agent's base URL, from which clients get its card; raise ConfigError if the agent is not served."""
        if check_id(agent) not in self.agents:
            raise ConfigError(f"agent {agent!r} is not exposed: add it to the agents= of messaging.expose")
        return f"{self.url}/agents/{quote(str(agent), safe='')}"

    def close(self) -> None:
        """End the server; tasks that wait for an answer fail. A second call does nothing."""
        serving, self._serving = self._serving, None
        if serving is not None:
            self._user.run(self._end(serving))
            self._user.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"A2AServer({self.url}, {len(self.agents):,} agents)"


def _bound(place: str) -> tuple[socket.socket, str]:
    try:
        parts = urlsplit(f"//{place}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port is None:
        raise ConfigError(
            f"a2a={place!r} is not an address: write host:port, such as '127.0.0.1:8000'; port 0 selects a free port"
        )
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigError(f"a2a={place!r} cannot be taken ({error.strerror}): pass another address or port") from error
    name = socket.gethostname() if host in {"0.0.0.0", "::"} else host  # noqa: S104 - what a user asked for
    return listening, f"http://{f'[{name}]' if ':' in name else name}:{listening.getsockname()[1]}"


class _Guard:
    """ASGI application that refuses requests without the token. Only the agents' A2A cards are public."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        given = b",".join(value for name, value in scope["headers"] if name == b"authorization")
        card = scope["method"] == "GET" and scope["path"].endswith(AGENT_CARD_WELL_KNOWN_PATH)
        if not card and not hmac.compare_digest(given, self._expected):
            refusal = PlainTextResponse(
                "pass the server's token: Authorization: Bearer TOKEN", 401, {"www-authenticate": "Bearer"}
            )
            await refusal(scope, receive, send)
            return
        size = 0

        async def counted() -> Message:
            nonlocal size
            event = await receive()
            size += len(event.get("body", b""))
            if size > _MOST_BYTES:
                raise _TooLarge
            return event

        try:
            await self._app(scope, counted, send)
        except _TooLarge:
            await PlainTextResponse(f"a request has at most {_MOST_BYTES:,} bytes", 413)(scope, receive, send)


class _TooLarge(BaseException):
    """An error: a request is too large.

    This is a BaseException, so that no `except Exception` of the application catches it.
    """


def _application(messager: Messager, agents: frozenset[AgentId], experiment: str, timeout: float) -> Starlette:
    exposed: dict[AgentId, JsonRpcDispatcher] = {}

    def named(request: Request) -> AgentId | None:
        try:
            agent = check_id(request.path_params["agent"])
        except InvalidAddress:
            return None
        return agent if agent in agents else None

    async def card(request: Request) -> Response:
        if (agent := named(request)) is None:
            return PlainTextResponse("no such agent", 404)
        url = f"{request.url.scheme}://{request.url.netloc}/agents/{quote(str(agent), safe='')}"
        return JSONResponse(agent_card_to_dict(_card(agent, experiment, url)))

    async def call(request: Request) -> Response:
        if (agent := named(request)) is None:
            return PlainTextResponse("no such agent", 404)
        if agent not in exposed:
            handler = DefaultRequestHandler(
                _Asking(messager, agent, timeout), _LastTasks(), _card(agent, experiment, str(request.url))
            )
            exposed[agent] = JsonRpcDispatcher(handler)
        return await exposed[agent].handle_requests(request)

    async def listed(_: Request) -> Response:
        return JSONResponse(
            {"experiment": experiment, "agents": sorted(agents, key=lambda each: (str(type(each)), each))}
        )

    return Starlette(
        routes=[
            Route("/agents", listed),
            Route(f"/agents/{{agent:path}}{AGENT_CARD_WELL_KNOWN_PATH}", card),
            Route("/agents/{agent:path}", call, methods=["POST"]),
        ]
    )


def _card(agent: AgentId, experiment: str, url: str) -> AgentCard:
    return AgentCard(
        name=f"{experiment}/{agent}",
        description=f"Agent {agent} of the experiment {experiment}.",
        version=version("ray-messaging"),
        supported_interfaces=[
            AgentInterface(
                url=url, protocol_binding=TransportProtocol.JSONRPC, protocol_version=PROTOCOL_VERSION_CURRENT
            )
        ],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=_MODES,
        default_output_modes=_MODES,
        skills=[AgentSkill(id="chat", name="Chat", description="Answers a message.", tags=["chat"])],
        security_schemes={"token": SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="bearer"))},
        security_requirements=[SecurityRequirement(schemes={"token": StringList()})],
    )


class _Asking(AgentExecutor):
    """Executor of A2A requests: it passes each message of a client to an agent, as a question of the user."""

    def __init__(self, messager: Messager, agent: AgentId, timeout: float) -> None:
        self._messager = messager
        self._agent = agent
        self._timeout = timeout
        self._under_way = 0

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Ask the agent, and end the A2A task.

        The task is completed with the agent's answer. The task is rejected if a rule blocks the question, or if the
        message is no valid payload. The task fails if there is no answer, if A2A cannot carry the answer, or at once if
        too many questions already wait for this agent.
        """
        assert context.message is not None
        task = context.current_task or new_task_from_user_message(context.message)
        if context.current_task is None:
            await event_queue.enqueue_event(task)
        told = TaskUpdater(event_queue, task.id, task.context_id)
        await told.start_work()
        if self._under_way >= _MOST_ASKED:  # clients may ask further questions before they have answers
            text = f"{_MOST_ASKED:,} questions already wait for an answer of this agent: ask again later"
            await told.failed(told.new_agent_message([new_text_part(text)]))
            return
        self._under_way += 1
        try:
            await self._ask(context.message, told)
        finally:
            self._under_way -= 1

    async def _ask(self, message: A2AMessage, told: TaskUpdater) -> None:
        try:
            payload = payload_of(message.parts)
            ask = self._messager.ask
            answer = await ask(None, self._agent, payload, subtopic=USER_CHAT, timeout=self._timeout)
        except (InvalidPayload, QuestionBlocked) as error:
            await told.reject(told.new_agent_message([new_text_part(str(error))]))
            return
        except MessagingError as error:
            await told.failed(told.new_agent_message([new_text_part(str(error))]))
            return
        try:
            parts = parts_of(answer.payload)
        except InvalidPayload as error:
            await told.failed(told.new_agent_message([new_text_part(f"the agent has answered, but {error}")]))
            return
        await told.add_artifact(parts, name="answer", last_chunk=True)
        await told.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Cancel a task: nobody waits for the answer any more. The agent has the message nevertheless."""
        assert context.task_id is not None
        assert context.context_id is not None
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


class _LastTasks(InMemoryTaskStore):
    """Store of an agent's A2A tasks, of which it keeps only the newest ones."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, None] = {}

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """Keep a task, and forget the oldest one if there are too many."""
        await super().save(task, context)
        self._kept[task.id] = None
        if len(self._kept) > _MOST_TASKS:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            await self.delete(oldest, context)
