"""The page of the calls through `me.remember`: which are under way, what they have cost, and who takes the longest."""

from collections.abc import Sequence
from urllib.parse import urlencode

from nicegui import ui

from ray_messaging.inspector.page_values import CallAtWork, CallFacts, CallsAtWork, CallSums, SlowAgent, number
from ray_messaging.inspector.pages import charts
from ray_messaging.inspector.pages.layout import Problem, await_data, card, chart, draw, figure, refilled, say
from ray_messaging.inspector.web.answer_cache import AnswerCache

_NOW_S, _LOG_S = 1.0, 5.0
_EVERYBODY = "all agents"
_COSTS = ("name", "calls", "tokens", "cost", "seconds")


class CallsPage:
    """The content of the page about the calls through `me.remember`. It is refreshed while the experiment runs."""

    def __init__(self, cache: AnswerCache) -> None:
        self._cache, self._source = cache, cache.source
        self._problem = Problem()
        now = {"flight": "calls in flight", "waits": "wait for a limit"} if cache.source.live else {}
        sums = {"made": "calls made", "saved": "saved by the store", "tokens": "tokens", "cost": "cost"}
        logged = cache.source.log_dir is not None
        with ui.row().classes("w-full gap-3"):
            self._figures = {key: figure(key, label) for key, label in (now | (sums if logged else {})).items()}
        if cache.source.live:
            with card("Calls under way now, the longest first"):
                self._now = ui.column().classes("gap-1 w-full").props("data-mark=now")
                await_data(self._now)
            ui.timer(_NOW_S, self.renew_now)
        if not logged:
            what = "There is no log, from which the page reads what calls have used: pass log_dir= to Messaging.start."
            ui.label(what).classes("note").props("data-mark=no-log")
            return
        with card("") as self._chart_card:
            self._measure = ui.label().classes("head").props("data-mark=measure")
            self._by_step = chart("by-step", 190)
        with card("Slowest agents, by the time for which a step waited for them alone"):
            self._slowest = ui.column().classes("gap-1 w-full").props("data-mark=slowest")
        with ui.row().classes("w-full gap-3 items-stretch stack"):
            with card("Calls by agent, the longest first", grow="1 1 0"):
                self._agents = ui.column().classes("gap-0 w-full").props("data-mark=by-agent")
            with card("By model", grow="1 1 0"):
                self._models = ui.column().classes("gap-0 w-full").props("data-mark=by-model")
        await_data(self._by_step, self._slowest, self._agents, self._models)
        ui.timer(0.05, self.renew, once=True)
        if cache.source.live:
            ui.timer(_LOG_S, self.renew)

    async def renew_now(self) -> None:
        """Show the calls through `me.remember` that are under way."""
        with self._problem.told("now"):
            found = await self._cache.shared("calls now", self._source.calls_now, 0.9 * _NOW_S)
            if found is not None:
                self._show_now(found)

    async def renew(self) -> None:
        """Show the numbers, tokens, costs and times of the calls in the committed steps."""
        with self._problem.told("the log"):
            found = await self._cache.shared("calls", self._source.calls, 0.9 * _LOG_S)
            if found is not None:
                self._show(found)

    def _show_now(self, found: CallsAtWork) -> None:
        say(self._figures["flight"], number(found.in_flight))
        say(self._figures["waits"], number(found.waiting))
        with refilled(self._now):
            for each in found.agents:
                _line(each.agent, _at_work(each), _held_up(each.hears, each.named))
            if not found.agents:
                ui.label("No call is under way.").classes("note")

    def _show(self, found: CallFacts) -> None:
        saved = f" ({number(found.saved_tokens)} tokens)" if found.saved_tokens else ""
        texts = (number(found.made), f"{number(found.saved)}{saved}", number(found.tokens), found.cost or "no prices")
        for key, text in zip(("made", "saved", "tokens", "cost"), texts, strict=True):
            say(self._figures[key], text)
        say(self._measure, f"{found.measure} by step".capitalize())
        draw(self._by_step, charts.bars(found.by_step))
        with refilled(self._slowest):
            for each in found.slowest:
                _line(each.agent, _slow(each), _wrote(each))
            if not found.slowest:
                ui.label("No step waited for one agent alone.").classes("note")
        _sums(self._agents, found.agents, linked=True)
        _sums(self._models, found.models)


def _agent_link(agent: str) -> None:
    ui.link(agent, f"/agent?{urlencode({'id': agent})}").classes("row")


def _line(agent: str, what: str, whom: str) -> None:
    with ui.row().classes("w-full no-wrap gap-3 items-baseline stack"):
        with ui.column().classes("gap-0 small").style("width: 110px"):
            _agent_link(agent)
        ui.label(what).classes("row").style("flex: 1 1 0")
        ui.label(whom).classes("note").style("flex: 1 1 0")


def _at_work(each: CallAtWork) -> str:
    flying = each.calls - each.waiting
    parts = [f"{flying:,} in flight"] if flying else []
    parts += [f"{each.waiting:,} waiting for a limit"] if each.waiting else []
    return f"step {each.step:,}: {', '.join(parts)}, for {each.seconds:,.1f} s"


def _held_up(hears: int | None, named: Sequence[str]) -> str:
    return "holds up all agents" if hears is None else f"holds up {_some(hears, named)}"


def _slow(each: SlowAgent) -> str:
    return f"step {each.step:,}: {each.seconds:,.1f} s, which is {each.longer:,.1f} s longer than the next agent"


def _wrote(each: SlowAgent) -> str:
    return f"then wrote to {_some(each.hears, each.named)}"


def _some(count: int, named: Sequence[str]) -> str:
    if not count:
        return "nobody"
    more = f" and {count - len(named):,} more" if count > len(named) else ""
    return ", ".join(named) + more


def _sums(column: ui.column, found: Sequence[CallSums], *, linked: bool = False) -> None:
    """Draw a table with the calls through `me.remember` of agents or models: numbers, tokens, cost and seconds.

    Args: with `linked`, the names are links to the pages of agents.
    """
    with refilled(column), ui.grid(columns="minmax(60px, 2fr) repeat(4, 1fr)").classes("w-full gap-x-3 gap-y-0"):
        for title in ("", *_COSTS[1:]):
            ui.label(title).classes("note").style("text-align: right" if title else "")
        for each in found:
            if linked:
                _agent_link(each.name)
            else:
                ui.label(each.name).classes("row")
            for text in (number(each.calls), number(each.tokens), each.cost, f"{each.seconds:,.1f}"):
                ui.label(text).classes("row justify-end").style("font-variant-numeric: tabular-nums")
