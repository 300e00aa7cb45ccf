"""The page that draws why a message was sent, and how many agents it could have influenced."""

import shlex
from collections.abc import Mapping

from nicegui import ui

from ray_messaging.inspector.page_values import Row
from ray_messaging.inspector.pages import charts
from ray_messaging.inspector.pages.layout import (
    Problem,
    await_data,
    button,
    card,
    chart,
    draw,
    field,
    fill,
    refilled,
    row_table,
)
from ray_messaging.inspector.web.answer_cache import AnswerCache

_DEPTHS = [1, 2, 3, 4]
_STEPS = 10  # effects are shown for at most this many steps
_LEAF = 36  # the height of the tree's chart, in pixels, for each leaf of the tree


class CausesPage:
    """The content of the page about the causes of a message."""

    def __init__(self, cache: AnswerCache, asked: Mapping[str, str]) -> None:
        self._cache = cache
        message_id = asked.get("id", "")
        with card("Why was it sent?"):
            with ui.row().classes("gap-3 items-end"):
                self._id = field("id of a message", message_id, "id", "w-64", self.show)
                self._depth = ui.select(_DEPTHS, value=2, label="levels").props("dense data-mark=depth").classes("w-24")
                button("Show", self.show)
            self._problem = Problem()
            ui.label(
                "To the right of a message are the messages that its sender read in the step in which it sent this "
                "message."
            ).classes("note")
            self._tree = ui.column().classes("w-full").props("data-mark=tree")
            self._fork = ui.label("").classes("note").props("data-mark=fork")
        with card(f"Agents that it could have influenced, in {_STEPS} steps"):
            self._effects = chart("effects", 160)
        with card("These messages"):
            self._table = row_table()
        if message_id:
            await_data(self._tree, self._effects, self._table)
            ui.timer(0.05, self.show, once=True)

    async def show(self) -> None:
        """Show the tree, the effects, and the messages."""
        message_id = (self._id.value or "").strip()
        if not message_id:
            return
        source = self._cache.source
        with self._problem.told():
            found = await self._cache.ask(source.why, message_id, self._depth.value)
            with refilled(self._tree):
                draw(chart("drawn", _LEAF * (1 + charts.leaves(found))), charts.tree(found))
            self._fork.set_text(_fork_without(source.log_dir, found.row))
            fill(self._table, list({row.position: row for row in reversed(found.rows())}.values()))
            if found.row.step is not None:  # effects are counted by step, so messages outside of steps have none
                draw(self._effects, charts.collected(await self._cache.ask(source.effects, message_id, _STEPS)))


def _fork_without(log_dir: str | None, row: Row) -> str:
    """Return a text with the shell command that forks the run at a message's step, with a rule against the message.

    The rule blocks all messages from this sender to this recipient.

    Return "" if such a fork is impossible, such as for a message outside of steps.
    """
    if log_dir is None or row.step is None or not (row.from_id.isdecimal() and row.to_id.isdecimal()):
        return ""
    folders = shlex.join([log_dir, log_dir.rstrip("/") + "-fork"])
    changed = f"--at-step {row.step} --rules black-list:{row.from_id}-{row.to_id}"
    return f"Fork from here, without it: ray-messaging fork {folders} {changed} --model MODULE:FUNCTION --until STEP"
