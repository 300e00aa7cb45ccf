"""The page for searches in the log's rows."""

import asyncio
from collections.abc import Mapping
from typing import Any

from nicegui import ui

from ray_messaging.inspector.page_values import RowQuery
from ray_messaging.inspector.pages.layout import Problem, await_data, button, card, field, fill, row_table
from ray_messaging.inspector.web.answer_cache import AnswerCache
from ray_messaging.model.fates import FATES

_FIELDS = (
    ("agent", "agent", "w-32"),
    ("from_id", "from", "w-32"),
    ("to_id", "to", "w-32"),
    ("contains", "text contains", "w-56"),
    ("rule", "rule", "w-32"),
    ("step", "step, 5 or 5:10", "w-32"),
)


class SearchPage:
    """The form of a search, and the rows that were found."""

    def __init__(self, cache: AnswerCache, asked: Mapping[str, str]) -> None:
        self._cache = cache
        self._searching = asyncio.Lock()  # one search at a time, so that old rows cannot replace newer ones
        with card("Search the last rows that match"):
            with ui.row().classes("w-full gap-3 items-end"):
                self._fields = {
                    key: field(label, asked.get(key, ""), key, wide, self.search) for key, label, wide in _FIELDS
                }
                fate = asked.get("fate", "")
                self._fate = ui.select(["", *FATES], value=fate, label="fate").props("dense").classes("w-32")
                button("Search", self.search)
            self._problem = Problem()
            self._found = ui.label().classes("note").props("data-mark=found")
            self._table = row_table()
            await_data(self._table)
        ui.timer(0.05, self.search, once=True)

    async def search(self) -> None:
        """Show the matching rows."""
        async with self._searching:
            given: dict[str, Any] = {key: found.value or "" for key, found in self._fields.items()}
            query = RowQuery(**given, fate=self._fate.value or "")
            with self._problem.told():
                rows = await self._cache.ask(self._cache.source.rows, query)
                fill(self._table, rows)
                self._found.set_text(f"The last {len(rows):,} rows, the newest first." if rows else "No row matches.")
