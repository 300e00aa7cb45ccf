"""The web application: it has one URL path for each page."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from nicegui import ui

from ray_messaging.inspector.pages.agent import Agent
from ray_messaging.inspector.pages.conversation import Conversation
from ray_messaging.inspector.pages.dead_letters import DeadLetters
from ray_messaging.inspector.pages.frame import frame
from ray_messaging.inspector.pages.overview import Overview
from ray_messaging.inspector.pages.rules import Rules
from ray_messaging.inspector.pages.search import Search
from ray_messaging.inspector.server.desk import Desk
from ray_messaging.inspector.values import RowQuery


def application(desk: Desk) -> FastAPI:
    """Return the application. There can be only one in a process."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await desk.close()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    _add_pages(desk)
    ui.run_with(app, title="inspector", dark=None, show_welcome_message=False, reconnect_timeout=10.0)
    return app


def _add_pages(desk: Desk) -> None:
    """Register the pages under their paths."""

    @ui.page("/")
    def show_overview() -> None:
        with frame(desk, "/"):
            Overview(desk)

    @ui.page("/search")
    def show_search(agent: str = "", contains: str = "", rule: str = "", fate: str = "", step: str = "") -> None:
        with frame(desk, "/search"):
            Search(desk, RowQuery(agent=agent, contains=contains, rule=rule, fate=fate, step=step))

    @ui.page("/conversation")
    def show_conversation(a: str = "", b: str = "") -> None:
        with frame(desk, "/conversation"):
            Conversation(desk, a, b)

    @ui.page("/agent")
    def show_agent(id: str = "") -> None:  # noqa: A002 - in the URL
        with frame(desk, "/agent"):
            Agent(desk, id)

    @ui.page("/rules")
    def show_rules() -> None:
        with frame(desk, "/rules"):
            Rules(desk)

    @ui.page("/deadletters")
    def show_dead_letters() -> None:
        with frame(desk, "/deadletters"):
            DeadLetters(desk)
