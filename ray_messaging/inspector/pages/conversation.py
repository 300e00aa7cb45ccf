"""The page of the conversation of two agents: texts, fates, labels, and texts before a rule rewrote them."""

from collections.abc import Sequence

from nicegui import ui

from ray_messaging.inspector.pages.layout import Problem, button, card, field
from ray_messaging.inspector.server.answer_cache import AnswerCache
from ray_messaging.inspector.values import Row, RowQuery, clock, size

_EVERY_S = 2.0
_LIMIT = 60


class Conversation:
    """The fields for the two agents, and their messages. They are refreshed while the experiment runs."""

    def __init__(self, cache: AnswerCache, one: str, other: str) -> None:
        self._cache = cache
        self._shown: list[int] | None = None
        with card("Conversation"):
            with ui.row().classes("gap-3 items-end"):
                self._one = field("one agent", one, "a", "w-40", self.show)
                self._other = field("the other", other, "b", "w-40", self.show)
                button("Show", self.show)
                ui.label("Without an id it is the user.").classes("note")
            self._problem = Problem()
            self._said = ui.column().classes("w-full gap-2").props("data-mark=said")
        ui.timer(0.05, self.show, once=True)
        if cache.source.live:
            ui.timer(_EVERY_S, self.show)

    async def show(self) -> None:
        """Show the last messages between the two."""
        one, other = self._one.value or "", self._other.value or ""
        if not one and not other:
            return
        with self._problem.told():
            query = RowQuery(between=(one, other), limit=_LIMIT)
            rows = await self._cache.ask(self._cache.source.rows, query)
            if [row.position for row in rows] != self._shown:
                self._shown = [row.position for row in rows]
                self._draw(rows)

    def _draw(self, rows: Sequence[Row]) -> None:
        self._said.clear()
        with self._said:
            if not rows:
                ui.label("They said nothing to each other.").classes("note")
            for row in rows:
                _message(row, left=row.from_id == rows[0].from_id)


def _message(row: Row, *, left: bool) -> None:
    colour = "var(--line)" if row.fate == "delivered" else "#e5484d" if row.fate == "blocked" else "#d99a1c"
    with (
        ui.row().classes("w-full" + ("" if left else " justify-end")),
        ui.column()
        .classes("gap-0")
        .style(f"max-width: 72%; border-left: 3px solid {colour}; padding: 2px 10px; min-width: 260px"),
    ):
        about = [f"{row.from_id} to {row.to_id}", clock(row.sent_at)]
        about += [] if row.step is None else [f"step {row.step:,}"]
        about += [row.fate] if row.fate != "delivered" else []
        ui.label(" \u00b7 ".join(about)).classes("note")
        ui.label(row.text).classes("mono")
        if row.text.endswith("\u2026"):
            ui.label(f"the beginning of {size(row.size)}").classes("note")
        if row.text_before:
            ui.label(f"before {row.rule} rewrote it: {row.text_before}").classes("note mono")
        elif row.rule or row.reason:
            ui.label(f"{row.rule}: {row.reason}").classes("note fate-blocked")
        if row.labels:
            ui.label(f"labels: {row.labels}").classes("note")
