"""Elements that the pages share: a frame with title, links and colours, a line for errors, and the table of rows."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlencode

from nicegui import ui

from ray_messaging.errors import MessagingError
from ray_messaging.inspector.page_values import Row, clock, cut, size, spoken
from ray_messaging.inspector.web.answer_cache import AnswerCache
from ray_messaging.model.fates import FATES, STORED, facts_of

T = TypeVar("T")

LEVELS = {"ok": "#2f9e5f", "warning": "#d99a1c", "critical": "#e5484d"}
GREY = "#8b93a1"

_STYLE = """
:root { --page: #f4f5f7; --card: #ffffff; --line: #e3e6ea; --ink: #1c2330; --faint: #6b7380; --accent: #2f6fde }
.body--dark { --page: #12161c; --card: #1a2029; --line: #2a323d; --ink: #dfe4ea; --faint: #8b93a1; --accent: #6ea8fe }
body, .q-page { background: var(--page) !important; color: var(--ink) }
.nicegui-content { padding: 14px 18px; gap: 12px; max-width: 1500px; margin: 0 auto; width: 100% }
.bar { background: var(--card) !important; color: var(--ink) !important; border-bottom: 1px solid var(--line);
  padding: 0 18px; min-height: 46px; align-items: center; gap: 4px 18px; box-shadow: none !important }
.bar a { color: var(--faint); text-decoration: none; font-size: 13px; line-height: 46px; white-space: nowrap }
.bar a:hover { color: var(--ink) }
.bar a.here { color: var(--ink); font-weight: 600; box-shadow: inset 0 -2px var(--accent) }
.brand { font-weight: 650; font-size: 14px; overflow-wrap: anywhere }
.pill { font-size: 11px; border: 1px solid var(--line); border-radius: 9px; padding: 0 8px; color: var(--faint);
  line-height: 17px; white-space: nowrap }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px; min-width: 0 }
.card > .nicegui-echart { margin: 0 }
.head { font-size: 12px; font-weight: 600; color: var(--ink) }
.note { font-size: 12px; color: var(--faint); overflow-wrap: anywhere }
.value { font-size: 21px; font-weight: 600; line-height: 26px; font-variant-numeric: tabular-nums; white-space: nowrap }
.label { font-size: 11px; color: var(--faint) }
.row { font-size: 12.5px; overflow-wrap: anywhere; line-height: 1.4 }
.mono { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 12px; overflow-wrap: anywhere;
  white-space: pre-wrap; line-height: 1.45 }
.words { font-size: 14px; overflow-wrap: anywhere; white-space: pre-wrap; line-height: 1.4 }
.problem { border-left: 3px solid #e5484d; padding: 6px 10px; font-size: 13px; background: var(--card);
  overflow-wrap: anywhere }
.q-table__card, .q-table { background: transparent !important; color: var(--ink) !important;
  box-shadow: none !important }
.depth { height: 8px; border-radius: 3px; background: #3b82f6; opacity: 0.75 }
.card .q-btn { padding: 2px 10px }
.q-table th { font-size: 11px; color: var(--faint); font-weight: 500 }
.q-table td { font-size: 12.5px; vertical-align: top; padding: 4px 8px !important; height: auto !important }
.q-table td.text { white-space: pre-wrap; overflow-wrap: anywhere; min-width: 240px }
.q-table td a { color: var(--accent); text-decoration: none }
.waits { animation: 0.2s 0.6s both waits; position: fixed; top: 54px; left: 50%; transform: translateX(-50%);
  z-index: 3000; background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 4px 12px }
@keyframes waits { from { opacity: 0 } }
.pending { border-radius: 4px !important; min-height: 26px; min-width: 48px; color: transparent !important;
  background: linear-gradient(90deg, var(--line) 30%, var(--page) 50%, var(--line) 70%) 0 0 / 300% 100% !important;
  animation: 0.2s 0.3s both waits, 1.6s linear infinite pending }
@keyframes pending { from { background-position: 100% 0 } to { background-position: -50% 0 } }
.pending > * { visibility: hidden }
.pending:not(.value)::after { content: "There is no answer yet, after 10 seconds."; color: var(--faint);
  font-size: 12px; position: absolute; left: 8px; top: 4px; animation: 0.2s 10s both waits }
.pending:not(.value) { position: relative }
.failed .pending { animation: none; background: none !important }
.failed .pending.value { color: var(--faint) !important }
.failed .pending:not(.value)::after { content: "unknown: see the error" !important; animation: none }
.q-table__bottom-nodata-icon, .pending .q-table__bottom { display: none }
@media (max-width: 700px) {
  .nicegui-content { padding: 8px }
  .bar a { line-height: 30px }
  .stack { flex-wrap: wrap !important }
  .stack > :not(.small, .q-btn) { flex: 1 1 100% !important; max-width: 100% }
  .stack > .small { width: auto !important }
  .q-table thead { display: none }
  .q-table tbody tr { height: auto; display: flex; flex-wrap: wrap; padding: 4px 0;
    border-bottom: 1px solid var(--line) }
  .q-table tbody td { border: none !important; padding: 0 8px 0 0 !important }
  .q-table tbody td:empty { display: none }
  .q-table tbody td.step::before { content: "step "; position: static; background: none }
  .q-table tbody td.to::before { content: "to "; position: static; background: none }
  .q-table tbody td.text { flex: 1 1 100%; order: 1; min-width: 0 }
}
""" + "".join(
    f".fate-{fate} {{ color: {'var(--faint)' if fate in STORED else facts_of(fate).colour} }}\n" for fate in FATES
)
_LOOK_S = 1.0
_TEXT = 400  # at most this many characters of a payload are shown

_COLUMNS = (
    ("at", "sent (UTC)"),
    ("step", "step"),
    ("from_id", "from"),
    ("to_id", "to"),
    ("text", "text"),
    ("fate", "fate"),
    ("rule", "rule, reason, labels"),
)
# Vue inserts {{ }} as text, so no value becomes markup.
_BODY = r"""
<q-tr :props="props">
  <q-td style="white-space: nowrap">{{ props.row.at }}</q-td>
  <q-td :class="{step: props.row.step !== ''}">{{ props.row.step
    }}<div v-if="props.row.why_link"><a :href="props.row.why_link">why</a></div></q-td>
  <q-td><a :href="props.row.from_link">{{ props.row.from_id }}</a></q-td>
  <q-td class="to"><a :href="props.row.to_link">{{ props.row.to_id }}</a></q-td>
  <q-td class="text">{{ props.row.text }}<div v-if="props.row.rest" class="note">{{ props.row.rest }}</div
    ><div v-if="props.row.before" class="note">before: {{ props.row.before }}</div
    ><div v-if="props.row.more" class="note">{{ props.row.more }}</div></q-td>
  <q-td><span :class="'fate-' + props.row.fate">{{ props.row.fate }}</span></q-td>
  <q-td style="overflow-wrap: anywhere; white-space: normal">{{ props.row.rule }}</q-td>
</q-tr>
"""


_TITLES = {
    "/": "Overview",
    "/society": "Society",
    "/search": "Search",
    "/conversation": "Conversation",
    "/agent": "Agent",
    "/calls": "Calls",
    "/why": "Why",
    "/rules": "Rules",
    "/deadletters": "Dead letters",
}


@contextmanager
def page_layout(cache: AnswerCache, here: str) -> Iterator[None]:
    """Draw the frame of the page at the path `here`. The body of the `with` statement draws the content."""
    ui.page_title(f"{cache.source.title} - inspector")
    ui.add_css(_STYLE)
    dark = ui.dark_mode(None)
    source = cache.source

    async def follow() -> None:
        await cache.follow()
        if cache.source is not source:
            ui.navigate.reload()

    with ui.header().classes("bar row"):
        ui.label(source.title).classes("brand").props("data-mark=title")
        ui.label(source.phase).classes("pill").props("data-mark=phase")
        if source.live:
            ui.timer(_LOOK_S, follow)
            ui.label("control" if cache.control is not None else "watching only").classes("pill")
        ui.space()
        for path, title in _TITLES.items():
            if title not in source.lacks:
                ui.link(title, path).classes("here" if path == here else "")
        ui.button(icon="contrast", on_click=lambda: dark.set_value(not dark.value)).props(
            'flat dense round size=sm color=grey aria-label="light or dark"'
        )
    yield


@contextmanager
def card(title: str, *, grow: str = "") -> Iterator[ui.column]:
    """Draw a card with a title. The body of the `with` statement draws the content."""
    with ui.column().classes("card gap-1").style(f"flex: {grow}" if grow else "width: 100%") as column:
        ui.label(title).classes("head")
        yield column


def await_data(*elements: ui.element) -> None:
    """Mark elements as waiting for data, until `draw`, `refilled`, `fill` or `say` shows their data."""
    for element in elements:
        element.classes("pending")


def _arrived(element: ui.element) -> None:
    element.classes(remove="pending")


@contextmanager
def refilled(column: ui.column) -> Iterator[None]:
    """Empty a column. The body of the `with` statement draws the new content."""
    _arrived(column)
    column.clear()
    with column:
        yield


def fact(title: str, value: str) -> None:
    """Draw the name and the value of a fact in a line."""
    with ui.row().classes("w-full no-wrap gap-2 items-baseline"):
        ui.label(title).classes("note").style("flex: 0 0 112px")
        ui.label(value).classes("row")


def figure(key: str, label: str) -> ui.label:
    """Add a card with one number and its name; return the number's element, which waits for its data."""
    with ui.column().classes("card gap-0").style("flex: 1 1 100px"):
        value = ui.label("\u2013").classes("value").props(f"data-mark=figure-{key}")
        await_data(value)
        ui.label(label).classes("label")
    return value


def chart(mark: str, height: int) -> ui.echart:
    """Draw a chart without data."""
    return ui.echart({"series": []}).classes("w-full").style(f"height: {height}px").props(f"data-mark={mark}")


def draw(shown: ui.echart, options: dict[str, Any]) -> None:
    """Draw a chart again if its options have changed."""
    _arrived(shown)
    if shown.options != options:
        shown.options.clear()
        shown.options.update(options)
        shown.update()


def say(label: ui.label, text: str) -> None:
    """Show a text in a label."""
    _arrived(label)
    label.set_text(text)


def button(
    label: str, act: Callable[[], Awaitable[object]], look: str = "unelevated color=primary", mark: str = ""
) -> None:
    """Draw a button that calls `act`."""
    ui.button(label, on_click=act).props(f"dense no-caps {look} data-mark={mark or label.lower()}")


def field(label: str, value: str, mark: str, wide: str, enter: Callable[[], Awaitable[object]]) -> ui.input:
    """Draw a field for a text. The key Enter calls `enter`.

    `mark` is a name by which tests find the field, and `wide` the CSS class of its width.
    """
    drawn = ui.input(label, value=value).props("dense").classes(wide).props(f"data-mark={mark}")
    return drawn.on("keydown.enter", enter)


class Problem:
    """A line with the errors of failed actions, and a spinner that appears while an answer takes long.

    Each error is shown until its action succeeds.

    Args: with `quiet`, there is no spinner.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        with ui.row().classes("waits no-wrap items-center gap-2") as self._waits:
            ui.spinner(size="18px")
            ui.label("The log is being read ...").classes("note")
        self._waits.set_visibility(False)
        self._quiet = quiet
        self._waiting = 0
        self._errors: dict[str, str] = {}
        self._label = ui.label().classes("problem w-full").props("data-mark=problem")
        self._label.set_visibility(False)

    @contextmanager
    def told(self, about: str = "") -> Iterator[None]:
        """Show the error that a `with` block raises.

        After a MessagingError or OSError, the program goes on after the block. Other errors are also raised. An error
        is shown until a later block with the same `about` succeeds.
        """
        self._wait(1)
        try:
            yield
        except (MessagingError, OSError) as error:
            self._errors[about] = str(error)
        except Exception as error:
            self._errors[about] = f"the inspector has failed, its output has the traceback: {error!r}"
            raise
        else:
            self._errors.pop(about, None)
        finally:
            self._wait(-1)
            self._show()

    def _wait(self, more: int) -> None:
        self._waiting += more
        self._waits.set_visibility(self._waiting > 0 and not self._quiet)

    def _show(self) -> None:
        self._label.set_text(cut("; ".join(dict.fromkeys(self._errors.values())), 1000))
        self._label.set_visibility(bool(self._errors))
        body = ui.query("body")
        body.classes("failed") if self._errors else body.classes(remove="failed")


class Changes:
    """A line that shows the result of the last change, or why that change was not made."""

    def __init__(self, cache: AnswerCache) -> None:
        self._cache = cache
        self._problem = Problem()
        self._done = ui.label().classes("note").props("data-mark=done")

    async def make(self, call: Callable[..., T], *arguments: object) -> T | None:
        """Make a change, and return its result, or None if it failed. If the result is a text, it is shown."""
        self._done.set_text("...")
        found = None
        try:
            with self._problem.told():
                found = await self._cache.change(call, *arguments)
        finally:
            self._done.set_text(cut(found, 1000) if isinstance(found, str) else "")
        return found


def row_table() -> ui.table:
    """Draw an empty table for rows of the log."""
    columns = [{"name": key, "label": label, "field": key, "align": "left"} for key, label in _COLUMNS]
    table = ui.table(columns=columns, rows=[], row_key="position").classes("w-full").props("data-mark=rows")
    table.props("flat dense hide-pagination :rows-per-page-options=[0] wrap-cells").props('no-data-label="No rows."')
    table.add_slot("body", _BODY)
    return table


def fill(table: ui.table, rows: Sequence[Row]) -> None:
    """Show rows in a table, the newest first."""
    _arrived(table)
    table.rows = [*map(_shown, reversed(rows))]


def _shown(row: Row) -> dict[str, Any]:
    words, rest = spoken(row.text)
    return {
        "position": row.position,
        "at": clock(row.sent_at),
        "step": "" if row.step is None else row.step,
        "from_id": row.from_id,
        "to_id": row.to_id,
        "from_link": agent_link(row.from_id),
        "to_link": agent_link(row.to_id),
        "why_link": f"/why?{urlencode({'id': row.message_id})}" if row.caused else "",
        "text": words if len(words) <= _TEXT else f"{words[:_TEXT]}\u2026",
        "rest": cut(rest, _TEXT),
        "before": cut(row.text_before, _TEXT),
        "more": f"the beginning of {size(row.size)}" if len(words) > _TEXT else "",
        "fate": row.fate,
        "rule": "; ".join(filter(None, (row.rule, row.reason, row.labels))),
    }


def agent_link(agent: str) -> str:
    """Return the URL path of an agent's page."""
    return f"/agent?{urlencode({'id': agent})}"
