"""The page of a society: all agents in one step, coloured by a collected value, and a slider over the steps.

If a second run is open beside the first one, the page shows it in the same step, and where the messages of the two runs
begin to differ.
"""

from collections.abc import Mapping
from dataclasses import replace

from nicegui import ui

from ray_messaging.inspector.page_values import Series, SocietyInStep
from ray_messaging.inspector.pages import charts
from ray_messaging.inspector.pages.layout import Problem, await_data, card, chart, draw, say
from ray_messaging.inspector.web.answer_cache import AnswerCache

_PLAY_S = 0.4
_SIZES = 500, 440  # the side of a square map in pixels, if the page shows one run, and if it shows two
_LEGEND = 130  # the width in pixels for the legend beside a map
_MOST_DIGITS = 18  # a step in the URL has at most this many digits
_NETWORK, _MAP = "messages of the step", "places"
_NOTHING = (
    "There is nothing to draw: the run collected no values, or too many for a page. A run collects a value of each "
    'agent by, for example, collect=lambda me: {"mood": me.state["mood"]}.'
)


class SocietyPage:
    """The content of the page that shows all agents of a run in one step."""

    def __init__(self, cache: AnswerCache, asked: Mapping[str, str]) -> None:
        self._cache = cache
        source = cache.source
        self._runs = [source] if source.beside is None else [source, source.beside]
        step = asked.get("step", "")
        self._step = int(step) if step.isdecimal() and len(step) <= _MOST_DIGITS else None
        self._steps: list[int] = []
        with card("Society, step by step"):
            self._problem = Problem(quiet=True)
            self._said = ui.label("").classes("row").props("data-mark=said")
            self._differ = ui.label("").classes("row").props("data-mark=differ")
            await_data(self._said)
            with ui.row().classes("w-full gap-4 items-center no-wrap stack") as self._choices:
                self._play = ui.button(icon="play_arrow", on_click=self._start_or_stop).props(
                    'flat dense round data-mark=play aria-label="play or pause"'
                )
                self._slider = ui.slider(min=0, max=1, value=0, on_change=self._slid).props(
                    'data-mark=slider aria-label="step"'
                )
                self._measure = ui.select([], label="colour", on_change=self.show).props("data-mark=measure")
                self._view = ui.select([_MAP], label="drawn as", on_change=self.show).props("data-mark=view")
                self._columns = ui.number("agents in a row", min=1, precision=0, on_change=self.show)
                self._columns.props("data-mark=columns")
                for choice in (self._measure, self._view, self._columns):
                    choice.classes("w-44 small").props("dense")
        self._size = _SIZES[len(self._runs) - 1]
        with ui.row().classes("w-full gap-3"):
            self._cards, self._maps = [], []
            for place, run in enumerate(self._runs):
                with card(f"Agents of {run.title}", grow=f"0 1 {self._size + _LEGEND}px") as drawn:
                    drawn.style("overflow-x: auto")  # so that a map keeps its size on a narrow screen
                    self._maps.append(chart(f"map-{place}", self._size + 10).style(f"min-width: {self._size + 100}px"))
                self._cards.append(drawn)
            with ui.column().classes("gap-3").style("flex: 1 1 380px; min-width: 0"):
                with card("Over the steps"):
                    self._lines = chart("lines", 240)
                    self._line_note = ui.label("").classes("note")
                with card("Messages that differ") as self._differs:
                    self._counts = chart("differences", 160)
        self._differs.set_visibility(source.beside is not None)
        self._drawing = False  # whether the page itself, and not the person at the browser, is changing the choices
        # The numbers of the last request for data, and of the request whose data are shown.
        self._asked = self._shown = 0
        self._waiting = 0  # the number of requests that have no answer yet
        self._timer = ui.timer(_PLAY_S, self._next, active=False)
        ui.timer(0.05, self._begin, once=True)

    async def _begin(self) -> None:
        await self.show()
        with self._problem.told("the differences"):
            found = await self._cache.ask(self._cache.source.differences)
            if found is not None:
                self._differ.set_text(found.first)
                draw(self._counts, charts.collected(found.lines))

    async def _slid(self) -> None:
        place = int(self._slider.value)
        if not self._drawing and place < len(self._steps):
            self._step = self._steps[place]
            await self.show()

    def _start_or_stop(self) -> None:
        self._timer.active = not self._timer.active
        self._play.set_icon("pause" if self._timer.active else "play_arrow")
        if self._timer.active and self._steps and self._step == self._steps[-1]:
            self._slider.set_value(0)

    async def _next(self) -> None:
        if self._waiting:
            return
        place = int(self._slider.value) + 1
        if place < len(self._steps):
            self._slider.set_value(place)
        else:
            self._start_or_stop()

    async def show_last(self) -> None:
        """Show the last step of each run."""
        self._step = None
        await self.show()

    async def show(self) -> None:
        """Show the chosen step of each run."""
        if self._drawing:
            return
        columns = max(1, int(self._columns.value)) if self._columns.value else None
        self._asked += 1
        asked = self._asked
        self._waiting += 1
        try:
            with self._problem.told():
                societies, lines = await self._ask(self._measure.value or "", columns)
                if asked > self._shown:  # false if a later request was answered before this one
                    self._shown = asked
                    self._show(societies, [found for found in lines if found is not None])
        finally:
            self._waiting -= 1

    async def _ask(self, measure: str, columns: int | None) -> tuple[list[SocietyInStep | None], list[Series | None]]:
        """Return, for each run, all agents in one step, and the collected values by step.

        An item is None if the run has collected no such values. The second run is asked for the value and the step in
        the first run's answer.
        """
        run, *others = self._runs
        first = await self._cache.ask(run.society_in_step, measure, self._step, columns)
        societies, lines = [first], [await self._cache.ask(run.over_steps, measure)]
        measure, step = (measure, self._step) if first is None else (first.measure, first.step)
        for other in others:
            found = values = None
            with self._problem.told(f"the run {other.title}"):  # the other run may lack the value
                found = await self._cache.ask(other.society_in_step, measure, step, columns)
                values = await self._cache.ask(other.over_steps, measure)
            societies.append(found)
            lines.append(values)
        return societies, lines

    def _show(self, societies: list[SocietyInStep | None], lines: list[Series]) -> None:
        first = societies[0]
        say(self._said, _NOTHING if not lines else "" if first is None else _said(first))
        self._choices.set_visibility(bool(lines))
        if lines:
            self._steps = lines[0].steps
            self._step = self._step if first is None else first.step
            self._step = self._step if self._step in self._steps else self._steps[-1]
            self._choose(first)
            scales = [each.scale for each in societies if each is not None]
            scale = _joint(scales) if scales else []
            for drawn, picture, found in zip(self._cards, self._maps, societies, strict=True):
                drawn.set_visibility(found is not None)
                if found is not None:
                    network = self._view.value == _NETWORK and found.linked
                    shown = replace(found, scale=scale)
                    drawing = charts.society_network if network else charts.society_map
                    draw(picture, drawing(shown, self._size))
            kinds = scale if first is not None and isinstance(first.scale, list) and isinstance(scale, list) else []
            draw(self._lines, charts.over_steps(lines, kinds, self._step))
            if first is not None:
                self._line_note.set_text("Agents with each value." if kinds else f"The mean of {first.measure}.")

    def _choose(self, found: SocietyInStep | None) -> None:
        """Set the page's fields of choices to the values that are shown."""
        self._drawing = True
        self._slider.props(f"max={max(1, len(self._steps) - 1)}")
        self._slider.set_value(self._steps.index(self._step or 0))
        for choice in (self._measure, self._view):
            choice.set_visibility(found is not None)
        self._columns.set_visibility(False)
        if found is not None:
            self._measure.set_options(found.measures, value=found.measure)
            views = [_MAP, _NETWORK] if found.linked else [_MAP]
            self._view.set_options(views, value=self._view.value if self._view.value in views else views[-1])
            self._columns.set_visibility(found.lattice and self._view.value == _MAP)
        self._drawing = False


def _said(found: SocietyInStep) -> str:
    drawn = "" if len(found.agents) == found.total else f", of which {len(found.agents):,} are drawn"
    return f"Step {found.step:,}: {found.total:,} agents{drawn}."


def _joint(scales: list[tuple[float, float] | list[str]]) -> tuple[float, float] | list[str]:
    """Return one scale for two runs, so that a colour means the same in both."""
    numbers = [scale for scale in scales if isinstance(scale, tuple)]
    if len(numbers) == len(scales):
        return min(low for low, _ in numbers), max(high for _, high in numbers)
    return sorted({kind for scale in scales if isinstance(scale, list) for kind in scale})
