"""The panel of the steps: how far they are, which groups are late; pause, resume and advance."""

from collections.abc import Awaitable, Callable

from nicegui import ui

from ray_messaging.inspector.pages.frame import Changes, card
from ray_messaging.inspector.server.desk import Desk
from ray_messaging.inspector.sources.live_control import LiveControl
from ray_messaging.inspector.texts import cut, name
from ray_messaging.inspector.values import State, StepFacts

_NAMED = 5


class StepPanel:
    """The steps, as far as there are any."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        with card("Steps"):
            self._said = ui.label("").classes("row").props("data-mark=steps")
            self._waiting = ui.label("").classes("note").props("data-mark=waiting")
            self._stragglers = ui.label("").classes("note")
            if desk.control is not None:
                self._controls = ui.row().classes("gap-2 items-center")
                with self._controls:
                    self._buttons(desk.control)

    def _buttons(self, control: LiveControl) -> None:
        self._changes = Changes(self._desk)
        _button("Pause", "pause", lambda: self._changes.make(control.pause))
        _button("Resume", "resume", lambda: self._changes.make(control.resume))
        steps = ui.number(value=1, min=1, max=1_000_000, precision=0).props(
            'dense data-mark=steps-more aria-label="steps"'
        )
        steps.classes("w-16")
        _button("Advance", "advance", lambda: self._changes.make(control.advance, int(steps.value or 1)))

    def show(self, state: State) -> None:
        """Show the present state."""
        if state.steps is None:
            self._said.set_text("This experiment has no steps.")
            self._allow(visible=False)
            return
        self._allow(visible=True)
        steps = state.steps
        self._said.set_text(_said(steps))
        self._waiting.set_text(_waited_for(steps))
        self._stragglers.set_text(cut("; ".join(steps.stragglers), 400))

    def _allow(self, *, visible: bool) -> None:
        if self._desk.control is not None:
            self._controls.set_visibility(visible)


def _button(label: str, mark: str, act: Callable[[], Awaitable[object]]) -> None:
    ui.button(label, on_click=act).props(f"dense outline no-caps size=sm data-mark={mark}")


def _said(steps: StepFacts) -> str:
    paused = "" if steps.target is None else f"; paused after step {steps.target:,}"
    return f"Step {steps.now:,} is open{paused}."


def _waited_for(steps: StepFacts) -> str:
    if not steps.waiting:
        return "Nobody is waited for."
    some = [f"{name(group)} (step {step:,})" for group, step in sorted(steps.waiting.items())[:_NAMED]]
    more = f" and {len(steps.waiting) - _NAMED} more" if len(steps.waiting) > _NAMED else ""
    return f"Waited for: {', '.join(some)}{more}."
