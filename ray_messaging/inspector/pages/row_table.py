"""The table of rows, as search, agent and conversation show it."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from nicegui import ui

from ray_messaging.inspector.texts import cut, size
from ray_messaging.inspector.values import Row

_TEXT = 400  # characters of a payload

_COLUMNS = (
    ("at", "sent (UTC)"),
    ("step", "step"),
    ("from_id", "from"),
    ("to_id", "to"),
    ("text", "text"),
    ("fate", "fate"),
    ("rule", "rule, reason, labels"),
)
# Vue writes {{ }} as text: no value becomes markup.
_BODY = r"""
<q-tr :props="props">
  <q-td style="white-space: nowrap">{{ props.row.at }}</q-td>
  <q-td>{{ props.row.step }}</q-td>
  <q-td><a :href="props.row.from_link">{{ props.row.from_id }}</a></q-td>
  <q-td><a :href="props.row.to_link">{{ props.row.to_id }}</a></q-td>
  <q-td class="text">{{ props.row.text }}<div v-if="props.row.before" class="note">before: {{ props.row.before }}</div
    ><div v-if="props.row.more" class="note">{{ props.row.more }}</div></q-td>
  <q-td><span :class="'fate-' + props.row.fate">{{ props.row.fate }}</span></q-td>
  <q-td style="overflow-wrap: anywhere; white-space: normal">{{ props.row.rule }}</q-td>
</q-tr>
"""


def row_table() -> ui.table:
    """Draw an empty table of rows."""
    columns = [{"name": key, "label": label, "field": key, "align": "left"} for key, label in _COLUMNS]
    table = ui.table(columns=columns, rows=[], row_key="position").classes("w-full").props("data-mark=rows")
    table.props("flat dense hide-pagination :rows-per-page-options=[0] wrap-cells")
    table.add_slot("body", _BODY)
    return table


def shown(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return rows for the table, the newest first."""
    return [_shown(row) for row in reversed(rows)]


def _shown(row: Row) -> dict[str, Any]:
    return {
        "position": row.position,
        "at": clock(row.sent_at),
        "step": "" if row.step is None else row.step,
        "from_id": row.from_id,
        "to_id": row.to_id,
        "from_link": agent_link(row.from_id),
        "to_link": agent_link(row.to_id),
        "text": cut(row.text, _TEXT),
        "before": cut(row.text_before, _TEXT),
        "more": f"the beginning of {size(row.size)}" if len(row.text) > _TEXT else "",
        "fate": row.fate,
        "rule": "; ".join(filter(None, (row.rule, row.reason, row.labels))),
    }


def clock(seconds: float) -> str:
    """Return a time of the log."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%d %b %H:%M:%S.%f}"[:-3]
    except (ValueError, OverflowError, OSError):  # any value of a sender's clock
        return f"{seconds:g}"


def agent_link(agent: str) -> str:
    """Return the path of an agent's page."""
    return f"/agent?{urlencode({'id': agent})}"
