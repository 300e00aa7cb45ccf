"""The rules, in order."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from urllib.parse import urlencode

from nicegui import ui

from ray_messaging.inspector.pages.frame import Problem, card, frame
from ray_messaging.inspector.pages.rule_form import RuleForm
from ray_messaging.inspector.server.desk import Desk
from ray_messaging.inspector.values import RuleFacts

_EVERY_S = 2.0


class Rules:
    """The list of the rules; it follows a running experiment."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._shown: list[RuleFacts] | None = None
        self._problem = Problem()
        with card("Rules, in the order in which messages pass them"):
            self._list = ui.column().classes("w-full gap-2").props("data-mark=rules")
        self._form = None if desk.control is None else RuleForm(desk, desk.control, self.show)
        ui.timer(_EVERY_S, self.show)

    async def show(self) -> None:
        """Show the rules as of now."""
        with self._problem.told():
            found = await self._desk.shared("rules", self._desk.source.rules, _EVERY_S / 2)
            if found != self._shown:
                self._shown = found
                self._draw(found)

    def _draw(self, rules: Sequence[RuleFacts]) -> None:
        self._list.clear()
        with self._list:
            for place, rule in enumerate(rules):
                with ui.row().classes("w-full no-wrap gap-3 items-baseline"):
                    ui.label(str(place)).classes("note").style("width: 18px")
                    ui.link(rule.name, f"/search?{urlencode({'rule': rule.name})}").classes("row").style("width: 180px")
                    ui.label(rule.kind).classes("note").style("width: 120px")
                    ui.label(rule.settings).classes("row").style("flex: 1 1 0")
                    if rule.failures:
                        ui.label(f"failed {rule.failures:,} times: {rule.last_error}").classes("row fate-blocked")
                    if self._form is not None:
                        _button("Replace", partial(self._form.replace, rule.key))
                        _button("Remove", partial(self._form.pop, rule.key))
            if not rules:
                ui.label("There are no rules: each message passes.").classes("note")


def _button(label: str, act: Callable[[], Awaitable[None]]) -> None:
    ui.button(label, on_click=act).props(f"dense flat no-caps size=sm data-mark={label.lower()}")


def page(desk: Desk) -> None:
    """Draw the page."""
    with frame(desk, "/rules"):
        Rules(desk)
