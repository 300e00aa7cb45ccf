"""The web application: it has one URL path for each page."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from nicegui import ui

from ray_messaging.inspector.pages.agent import Agent
from ray_messaging.inspector.pages.causes import Causes
from ray_messaging.inspector.pages.conversation import Conversation
from ray_messaging.inspector.pages.dead_letters import DeadLetters
from ray_messaging.inspector.pages.layout import page_layout
from ray_messaging.inspector.pages.overview import Overview
from ray_messaging.inspector.pages.rules import Rules
from ray_messaging.inspector.pages.search import Search
from ray_messaging.inspector.server.answer_cache import AnswerCache
from ray_messaging.inspector.values import RowQuery


def application(cache: AnswerCache) -> FastAPI:
    """Return the application. There can be only one in a process."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await cache.close()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    _add_pages(cache)
    ui.run_with(app, title="inspector", dark=None, show_welcome_message=False, reconnect_timeout=10.0)
    return app


def _add_pages(cache: AnswerCache) -> None:
    """Register the pages under their paths."""

    @ui.page("/")
    def show_overview() -> None:
        with page_layout(cache, "/"):
            Overview(cache)

    @ui.page("/search")
    def show_search(agent: str = "", contains: str = "", rule: str = "", fate: str = "", step: str = "") -> None:
        with page_layout(cache, "/search"):
            Search(cache, RowQuery(agent=agent, contains=contains, rule=rule, fate=fate, step=step))

    @ui.page("/conversation")
    def show_conversation(a: str = "", b: str = "") -> None:
        with page_layout(cache, "/conversation"):
            Conversation(cache, a, b)

    @ui.page("/agent")
    def show_agent(id: str = "") -> None:  # noqa: A002 - in the URL
        with page_layout(cache, "/agent"):
            Agent(cache, id)

    @ui.page("/why")
    def show_why(id: str = "") -> None:  # noqa: A002 - in the URL
        with page_layout(cache, "/why"):
            Causes(cache, id)

    @ui.page("/rules")
    def show_rules() -> None:
        with page_layout(cache, "/rules"):
            Rules(cache)

    @ui.page("/deadletters")
    def show_dead_letters() -> None:
        with page_layout(cache, "/deadletters"):
            DeadLetters(cache)
