"""The page of the conversation of two agents: texts, fates, labels, and texts before a rule rewrote them."""

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from nicegui import ui

from ray_messaging.inspector.page_values import Row, RowQuery, clock, cut, size, spoken
from ray_messaging.inspector.pages.layout import Problem, button, card, field, refilled
from ray_messaging.inspector.web.answer_cache import AnswerCache
from ray_messaging.model.fates import STORED, facts_of

_EVERY_S, _SOCIETY_S = 2.0, 5.0
_LIMIT = 60


class ConversationPage:
    """A page with two fields for agents, and the messages between these agents.

    The messages are refreshed while the experiment runs.
    """

    def __init__(self, cache: AnswerCache, asked: Mapping[str, str]) -> None:
        self._cache = cache
        self._shown: list[int] | None = None
        with card("Conversation"):
            with ui.row().classes("gap-3 items-end"):
                self._one = field("one agent", asked.get("a", ""), "a", "w-40", self.show)
                self._other = field("the other", asked.get("b", ""), "b", "w-40", self.show)
                button("Show", self.show)
                ui.label("Without an id it is the user.").classes("note")
            self._pairs = ui.row().classes("gap-x-4 gap-y-0 items-baseline q-my-sm").props("data-mark=pairs")
            self._problem = Problem()
            self._said = ui.column().classes("w-full gap-2").style("max-width: 760px").props("data-mark=said")
        ui.timer(0.05, self.show, once=True)
        ui.timer(0.05, self.offer, once=True)
        if cache.source.live:
            ui.timer(_EVERY_S, self.show)

    async def offer(self) -> None:
        """Show links to the conversations of the pairs of agents that wrote most."""
        with self._problem.told():
            society = await self._cache.shared("society", self._cache.source.society, _SOCIETY_S)
            with self._pairs:
                ui.label("Who wrote most:").classes("note")
                for one, other, messages in () if society is None else society.pairs:
                    where = f"/conversation?{urlencode({'a': one, 'b': other})}"
                    ui.link(f"{one} to {other} ({messages:,})", where).classes("note")

    async def show(self) -> None:
        """Show the last messages between the two agents."""
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
        with refilled(self._said):
            if not rows:
                ui.label("These two sent each other no messages.").classes("note")
            questions = {row.message_id: row for row in rows if row.asks}
            answers = {row.in_reply_to: row for row in rows if row.in_reply_to}
            for row in rows:
                with _message(row, left=row.from_id == rows[0].from_id):
                    _about(row)
                    if question := questions.get(row.in_reply_to):
                        ui.link(f"answers: {cut(spoken(question.text)[0], 100)}", f"#{question.position}").classes(
                            "note"
                        )
                    elif row.in_reply_to:
                        ui.label("answers an earlier question").classes("note")
                    _content(row)
                    if answer := answers.get(row.message_id):
                        ui.link(f"answered: {cut(spoken(answer.text)[0], 100)}", f"#{answer.position}").classes("note")
                    elif row.asks:
                        ui.label("a question without an answer here").classes("note")


def _message(row: Row, *, left: bool) -> ui.column:
    colour = "var(--line)" if row.fate in STORED else facts_of(row.fate).colour
    with ui.row().classes("w-full" + ("" if left else " justify-end")):
        return (
            ui.column()
            .classes("gap-0")
            .style(f"max-width: 80%; border-left: 3px solid {colour}; padding: 2px 10px; scroll-margin-top: 60px")
            .props(f"id={row.position}")
        )


def _about(row: Row) -> None:
    about = [f"{row.from_id} to {row.to_id}", clock(row.sent_at)]
    about += [] if row.step is None else [f"step {row.step:,}"]
    about += [] if row.fate in STORED else [row.fate]
    ui.label(" \u00b7 ".join(about)).classes("note")


def _content(row: Row) -> None:
    words, rest = spoken(row.text)
    ui.label(words).classes("words" if rest or words != row.text else "mono")
    if rest:
        ui.label(rest).classes("note mono")
    if row.text.endswith("\u2026"):
        ui.label(f"the beginning of {size(row.size)}").classes("note")
    if row.text_before:
        ui.label(f"before {row.rule} rewrote it: {row.text_before}").classes("note mono")
    elif row.rule or row.reason:
        ui.label(f"{row.rule}: {row.reason}").classes("note fate-blocked")
    if row.labels:
        ui.label(f"labels: {row.labels}").classes("note")
