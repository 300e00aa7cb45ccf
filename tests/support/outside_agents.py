"""Agents outside of an experiment, served by the A2A SDK on this machine, and servers that answer with garbage."""

import asyncio
import socket
import threading
from contextlib import contextmanager

import uvicorn
from a2a.helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, Role
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route


class Outside(AgentExecutor):
    """An outside agent: it notes what it hears, and answers as it is told.

    Args: `answer(text)` returns texts, each one a message or an artifact, or raises; `hold` delays answers until it is
    set, `as_task` makes tasks of them.
    """

    def __init__(self, answer, *, as_task=True, hold=None):
        self.answer = answer
        self.as_task = as_task
        self.hold = hold
        self.heard = []
        self.ids = []
        self.headers = []

    async def execute(self, context, event_queue):
        self.heard.append(context.get_user_input())
        self.ids.append(context.message.message_id)
        self.headers.append(context.call_context.state["headers"])
        task = new_task_from_user_message(context.message)
        told = TaskUpdater(event_queue, task.id, task.context_id)
        if self.as_task:
            await event_queue.enqueue_event(task)
            await told.start_work()
        if self.hold is not None:
            await asyncio.to_thread(self.hold.wait)
        texts = self.answer(self.heard[-1])
        for text in texts:
            if self.as_task:
                await told.add_artifact([new_text_part(text)])
            else:
                await event_queue.enqueue_event(new_text_message(text, role=Role.ROLE_AGENT))
        if self.as_task:
            await told.complete()

    async def cancel(self, context, event_queue):
        raise NotImplementedError


def application(executor, url, *, streaming=True, leads_to=None):
    card = AgentCard(
        name="outside",
        description="An outside agent.",
        version="1",
        supported_interfaces=[AgentInterface(url=leads_to or url, protocol_binding="JSONRPC", protocol_version="1.0")],
        capabilities=AgentCapabilities(streaming=streaming),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="chat", name="Chat", description="Chats.", tags=["chat"])],
    )
    handler = DefaultRequestHandler(executor, InMemoryTaskStore(), card)
    return Starlette(routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/")])


def garbage(url, card, body, status=200, content_type="application/json", headers=None):
    """Return an application with a card, or some other text in its place, whose answer to everything is `body`."""

    async def of_card(request):
        return Response(card.replace("URL", url), media_type="application/json")

    async def of_call(request):
        return Response(body, status, headers, media_type=content_type)

    return Starlette(routes=[Route("/.well-known/agent-card.json", of_card), Route("/", of_call, methods=["POST"])])


@contextmanager
def served(make):
    """Serve the application that `make(url)` returns, in a thread; yield its URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    config = uvicorn.Config(make(url), log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield url
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
