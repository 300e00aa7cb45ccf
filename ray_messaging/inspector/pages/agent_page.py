"""The page of an agent: its messages by fate, its neighbours, and its last messages."""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from urllib.parse import urlencode

from nicegui import ui

from ray_messaging.inspector.page_values import AgentFacts, number
from ray_messaging.inspector.pages import charts
from ray_messaging.inspector.pages.layout import (
    Changes,
    Problem,
    await_data,
    button,
    card,
    chart,
    draw,
    fact,
    field,
    fill,
    refilled,
    row_table,
)
from ray_messaging.inspector.sources.live_control import LiveControl
from ray_messaging.inspector.web.answer_cache import AnswerCache

_EVERY_S = 3.0


class AgentPage:
    """The content of the page about one agent, refreshed while the experiment runs."""

    def __init__(self, cache: AnswerCache, asked: Mapping[str, str]) -> None:
        self._cache = cache
        agent = asked.get("id", "")
        with card("Agent"):
            with ui.row().classes("gap-3 items-end"):
                self._id = field("id", agent, "id", "w-48", self.show)
                button("Show", self.show)
                self._where = ui.label().classes("note").props("data-mark=where")
            self._problem = Problem()
        with ui.row().classes("w-full gap-3 items-stretch"):
            self._columns = {title: self._card(title) for title in ("Sent", "Received", "Writes to", "Hears from")}
        with card("State") as self._keeps:
            self._state = ui.column().classes("gap-0 w-full").props("data-mark=state")
        self._keeps.set_visibility(False)
        with card("Collected, by step") as self._collects:
            self._collected = chart("collected", 190)
        self._collects.set_visibility(False)
        if cache.control is not None:
            with card("Write to it as the user"):
                self._write(cache.control)
        with card("Its last messages"):
            self._table = row_table()
        if agent:
            await_data(*self._columns.values(), self._table)
            ui.timer(0.05, self.show, once=True)
        if cache.source.live:
            ui.timer(_EVERY_S, self.show)

    def _write(self, control: LiveControl) -> None:
        with ui.row().classes("w-full gap-3 items-end"):
            text = ui.input("a text, or a payload as JSON").props("dense data-mark=message").classes("grow")
            for label, call in (("Write", control.write), ("Ask", control.ask)):
                send = partial(self._send, call, text)
                button(label, send, "outline")
        self._changes = Changes(self._cache)

    async def _send(self, call: Callable[[str, str], str], text: ui.input) -> None:
        await self._changes.make(call, self._id.value or "", text.value or "")
        await self.show()

    def _card(self, title: str) -> ui.column:
        with card(title, grow="1 1 150px"):
            return ui.column().classes("gap-0 w-full").props(f"data-mark={title.lower().replace(' ', '-')}")

    async def show(self) -> None:
        """Show the facts about the agent."""
        agent = (self._id.value or "").strip()
        if not agent:
            return
        with self._problem.told():
            self._draw(await self._cache.ask(self._cache.source.agent, agent))
            series = await self._cache.ask(self._cache.source.series, agent)
            self._collects.set_visibility(series is not None)
            if series is not None:
                draw(self._collected, charts.collected(series))

    def _draw(self, facts: AgentFacts) -> None:
        where = [] if facts.group is None else [f"in group {facts.group}"]
        where += [] if facts.waiting is None else [f"{number(facts.waiting)} messages wait there"]
        self._where.set_text(", ".join(where))
        for title, counts in (("Sent", facts.sent), ("Received", facts.received)):
            self._list(title, counts.items(), _fate, "nothing")
        for title, found in (("Writes to", facts.writes_to), ("Hears from", facts.hears_from)):
            self._list(title, found, partial(_conversation, facts.name), "nobody")
        fill(self._table, facts.rows)
        self._keeps.set_visibility(bool(facts.state))
        with refilled(self._state):
            for key, value in facts.state.items():
                fact(key, value)
            if facts.state and not self._cache.source.live:
                ui.label("As collected in the last step.").classes("note")

    def _list(
        self, title: str, found: Collection[tuple[str, int]], draw_name: Callable[[str], object], none: str
    ) -> None:
        """Show numbers of messages under a title, each beside its name, such as a fate or another agent.

        `none` is the text that is shown if `found` is empty.
        """
        with refilled(self._columns[title]):
            for each, messages in found:
                with ui.row().classes("w-full justify-between no-wrap"):
                    draw_name(each)
                    ui.label(number(messages)).classes("row")
            if not found:
                ui.label(none).classes("note")


def _fate(fate: str) -> None:
    ui.label(fate).classes(f"row fate-{fate}")


def _conversation(agent: str, other: str) -> None:
    ui.link(other, f"/conversation?{urlencode({'a': agent, 'b': other})}").classes("row")
