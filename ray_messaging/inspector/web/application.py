"""The web application of the inspector, with a URL path for each page."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from nicegui import ui

from ray_messaging.inspector.pages.agent_page import AgentPage
from ray_messaging.inspector.pages.calls_page import CallsPage
from ray_messaging.inspector.pages.causes_page import CausesPage
from ray_messaging.inspector.pages.conversation_page import ConversationPage
from ray_messaging.inspector.pages.dead_letters_page import DeadLettersPage
from ray_messaging.inspector.pages.layout import page_layout
from ray_messaging.inspector.pages.model_page import ModelPage
from ray_messaging.inspector.pages.overview_page import OverviewPage
from ray_messaging.inspector.pages.rules_page import RulesPage
from ray_messaging.inspector.pages.search_page import SearchPage
from ray_messaging.inspector.pages.society_page import SocietyPage
from ray_messaging.inspector.pages.study_page import StudyPage
from ray_messaging.inspector.sources.log_rows import RunFacts
from ray_messaging.inspector.sources.model_facts import ModelFacts
from ray_messaging.inspector.sources.study_facts import StudyFacts
from ray_messaging.inspector.web.answer_cache import AnswerCache

_Draw = Callable[[AnswerCache, Mapping[str, str]], object]


def application(cache: AnswerCache) -> FastAPI:
    """Return the web application with all pages of the inspector. There can be only one in a process."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await cache.close()

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    for path, draw in _pages_of(cache.source).items():
        _add_page(cache, path, draw)
    ui.run_with(app, title="inspector", dark=None, show_welcome_message=False, reconnect_timeout=10.0)
    return app


def _pages_of(source: RunFacts) -> "dict[str, _Draw]":
    if isinstance(source, StudyFacts):
        return {"/": StudyPage}
    return {"/": ModelPage} if isinstance(source, ModelFacts) else _PAGES


_PAGES: dict[str, _Draw] = {
    "/": lambda cache, _: OverviewPage(cache),
    "/society": SocietyPage,
    "/search": SearchPage,
    "/conversation": ConversationPage,
    "/agent": AgentPage,
    "/calls": lambda cache, _: CallsPage(cache),
    "/why": CausesPage,
    "/rules": lambda cache, _: RulesPage(cache),
    "/deadletters": lambda cache, _: DeadLettersPage(cache),
}


def _add_page(cache: AnswerCache, path: str, draw: _Draw) -> None:
    """Register a page under its URL path. The page is drawn anew for each browser, with the parameters in the URL."""

    @ui.page(path)
    def show(request: Request) -> None:
        with page_layout(cache, path):
            draw(cache, request.query_params)
