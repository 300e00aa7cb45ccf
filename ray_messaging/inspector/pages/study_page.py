"""The page of a study: its progress, a table with a row per set of parameters, curves with intervals, a heat map."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

from nicegui import ui

from ray_messaging.inspector.page_values import cut
from ray_messaging.inspector.pages import study_charts
from ray_messaging.inspector.pages.layout import Problem, await_data, card, chart, draw, say
from ray_messaging.inspector.sources.study_facts import Choice, StudyFacts, StudyTable
from ray_messaging.inspector.web.answer_cache import AnswerCache

_EVERY_S = 2.0
_ALL = "all values together"
_NOTHING = "No run with an outcome that is a number has ended yet, or the study has no parameters."


class StudyPage:
    """The content of the page of a study. It is refreshed while the study goes on."""

    def __init__(self, cache: AnswerCache, asked: Mapping[str, str]) -> None:
        self._cache = cache
        assert isinstance(cache.source, StudyFacts)
        self._facts = cache.source
        self._asked = Choice(asked.get("outcome", ""), asked.get("x", ""), asked.get("by", ""))
        self._choosing = False  # whether the page itself, and not the person at the browser, is changing the choices
        self._shown: StudyTable | None = None
        self._problem = Problem(quiet=True)
        with card("Runs"):
            self._said = ui.label("").classes("row").props("data-mark=said")
            await_data(self._said)
            self._bar = ui.linear_progress(0, show_value=False, size="8px").props("instant-feedback data-mark=progress")
            self._error = ui.label("").classes("note").props("data-mark=error")
        with ui.row().classes("w-full gap-4 items-center stack"):
            self._outcome = ui.select([], label="outcome", on_change=self._chosen).props("data-mark=outcome")
            self._x = ui.select([], label="over", on_change=self._chosen).props("data-mark=over")
            self._by = ui.select([_ALL], label="a line for each", on_change=self._chosen).props("data-mark=by")
            for choice in (self._outcome, self._x, self._by):
                choice.classes("w-44 small").props("dense")
        with ui.row().classes("w-full gap-3"):
            with card("Means, with their intervals", grow="1 1 380px"):
                self._curves = chart("curves", 320)
                self._note = ui.label("").classes("note").props("data-mark=note")
            with card("Two parameters", grow="1 1 380px") as self._heat_card:
                self._heat = chart("heat", 340)
        with card("Rows of parameters"):
            self._table = ui.table(columns=[], rows=[], row_key="place").classes("w-full")
            self._table.props("data-mark=table flat dense hide-pagination :rows-per-page-options=[0]")
            self._table.props('no-data-label="No run has ended."')
            self._more = ui.label("").classes("note")
        ui.timer(0.05, self.show, once=True)
        ui.timer(_EVERY_S, self.show)

    async def _chosen(self) -> None:
        if not self._choosing:
            by = self._by.value or ""
            self._asked = Choice(self._outcome.value or "", self._x.value or "", "" if by == _ALL else by)
            await self._draw()

    async def show(self) -> None:
        """Show the study as it is now."""
        with self._problem.told():
            found = await self._cache.shared("study", self._facts.table, _EVERY_S / 2)
            if found is not self._shown:
                self._shown = found
                self._show(found)
                await self._draw()

    def _show(self, found: StudyTable) -> None:
        of = "" if found.planned is None else f" of {found.planned:,}"
        failed = f", {found.failed:,} failed" if found.failed else ""
        say(self._said, f"{found.ended:,}{of} runs have ended{failed}.")
        self._bar.set_visibility(found.planned is not None)
        self._bar.set_value(found.ended / found.planned if found.planned else 0)
        self._error.set_text(f"The first error: {found.error}" if found.error else "")
        names = [*found.parameters, "runs", "failed", *found.outcomes]
        # The columns' keys are c0, c1, ... and not the names of parameters and outcomes, which may be any texts.
        self._table.columns = [
            {"name": f"c{place}", "label": cut(each, 40), "field": f"c{place}", "align": "left"}
            for place, each in enumerate(names)
        ]
        self._table.rows = [
            {"place": number} | {f"c{place}": _cell(row, each) for place, each in enumerate(names)}
            for number, row in enumerate(found.rows)
        ]
        left = found.all_rows - len(found.rows)
        self._more.set_text(f"... and {left:,} more rows" if left else "")

    async def _draw(self) -> None:
        with self._problem.told("the curves"):
            found = await self._cache.ask(self._facts.curves, self._asked)
            self._note.set_text(_NOTHING if found is None else found.note)
            if found is not None:
                self._choose(found.choice)
                draw(self._curves, study_charts.curves(found))
        with self._problem.told("the heat map"):
            cells = await self._cache.ask(self._facts.heat_map, self._asked)
            self._heat_card.set_visibility(cells is not None)
            if cells is not None:
                draw(self._heat, study_charts.heat_map(cells))

    def _choose(self, choice: Choice) -> None:
        """Fill the page's fields of choices with the study's parameters and outcomes, and select the shown ones."""
        assert self._shown is not None
        self._choosing = True
        self._outcome.set_options(self._shown.outcomes, value=choice.outcome)
        self._x.set_options(self._shown.parameters, value=choice.x)
        others = [each for each in self._shown.parameters if each != choice.x]
        self._by.set_options([_ALL, *others], value=choice.by or _ALL)
        self._choosing = False


def _cell(row: Mapping[str, Any], column: str) -> str:
    """Return the value of a column in a row as text for the table. A mean comes with its bootstrap interval."""
    value = row.get(column)
    if isinstance(value, float) and f"{column} low" in row:
        low, high = row[f"{column} low"], row[f"{column} high"]
        return f"{value:.4g} ({low:.4g} to {high:.4g})" if isfinite(low) else f"{value:.4g}"
    return cut(value, 60)
