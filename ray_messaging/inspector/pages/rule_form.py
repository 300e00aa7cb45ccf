"""The form for a rule: a text in the grammar of the command line, a preview of what it blocks, its place."""

from collections.abc import Awaitable, Callable

from nicegui import ui

from ray_messaging.inspector.pages.frame import Changes, card
from ray_messaging.inspector.server.desk import Desk
from ray_messaging.inspector.sources.live_control import LiveControl
from ray_messaging.inspector.values import Preview


class RuleForm:
    """The form; `then` is called after a change."""

    def __init__(self, desk: Desk, control: LiveControl, then: Callable[[], Awaitable[None]]) -> None:
        self._control = control
        self._then = then
        with card("A new rule"):
            with ui.row().classes("w-full gap-3 items-end no-wrap"):
                self._spec = ui.input("rule, as max-length:500").props("dense data-mark=spec").classes("grow")
                self._index = ui.number("place (none: at the end)", min=0, precision=0, format="%d")
                self._index.props("dense data-mark=place").classes("w-44")
                _button("Preview", self.preview, "outline")
                _button("Insert", self.insert, "unelevated color=primary")
            self._changes = Changes(desk)
            self._seen = ui.column().classes("w-full gap-1").props("data-mark=previewed")
            with ui.expansion("How rules are written").classes("note w-full").props("dense"):
                for example in control.examples:
                    ui.label(example).classes("mono note")

    @property
    def spec(self) -> str:
        """Return the text of the rule."""
        return self._spec.value or ""

    async def preview(self) -> None:
        """Show the messages that the rule would have blocked."""
        self._seen.clear()
        found = await self._changes.make(self._control.preview, self.spec)
        if found is not None:
            with self._seen:
                _show(found)

    async def insert(self) -> None:
        """Insert the rule."""
        index = None if self._index.value is None else int(self._index.value)
        await self._changes.make(self._control.insert_rule, self.spec, index)
        await self._then()

    async def replace(self, which: str) -> None:
        """Put the rule in the place of another one."""
        await self._changes.make(self._control.replace_rule, which, self.spec)
        await self._then()

    async def pop(self, which: str) -> None:
        """Remove a rule."""
        await self._changes.make(self._control.pop_rule, which)
        await self._then()


def _button(label: str, act: Callable[[], Awaitable[None]], look: str) -> None:
    ui.button(label, on_click=act).props(f"dense no-caps {look} data-mark={label.lower()}")


def _show(found: Preview) -> None:
    share = f" ({found.blocked / found.judged:.1%})" if found.judged else ""
    changed = f", and changed or labelled {found.changed:,}" if found.changed else ""
    left_out = f" {found.left_out:,} longer messages were not judged." if found.left_out else ""
    ui.label(
        f"{found.rule} would have blocked {found.blocked:,}{share} of the {found.judged:,} messages that passed in the "
        f"last {found.seconds:,.0f} s{changed}.{left_out}"
    ).classes("row")
    for row in found.examples:
        ui.label(f"{row.from_id} to {row.to_id}: {row.reason} \u2014 {row.text[:200]}").classes("note mono")
