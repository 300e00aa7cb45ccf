"""The page of the rules, in order."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from urllib.parse import urlencode

from nicegui import ui

from ray_messaging.inspector.page_values import Preview, RuleFacts, StepFacts
from ray_messaging.inspector.pages.layout import Changes, Problem, await_data, button, card, refilled
from ray_messaging.inspector.sources.live_control import LiveControl
from ray_messaging.inspector.web.answer_cache import AnswerCache

_EVERY_S = 2.0


class RuleForm:
    """The form for a new rule. `then` is called after a change."""

    def __init__(self, cache: AnswerCache, control: LiveControl, then: Callable[[], Awaitable[None]]) -> None:
        self._control = control
        self._then = then
        with card("A new rule"):
            with ui.row().classes("w-full gap-3 items-end"):
                self._spec = ui.input("rule, such as max-length:500").props("dense data-mark=spec").classes("grow")
                self._index = _number("place (none: at the end)", "place")
                self._step = _number("from step (none: at once)", "at-step")
                button("Preview", self.preview, "outline")
                button("Insert", self.insert)
            self._advice = ui.label().classes("note").props("data-mark=advice")
            self.tell(None)
            self._changes = Changes(cache)
            self._seen = ui.column().classes("w-full gap-1").props("data-mark=previewed")
            with ui.expansion("How rules are written").classes("note w-full").props("dense"):
                for example in control.examples:
                    ui.label(example).classes("mono note")

    @property
    def spec(self) -> str:
        """Return the text of the rule that was typed into the form."""
        return self._spec.value or ""

    def tell(self, steps: StepFacts | None) -> None:
        """Show where the run is, and how a change must be made so that the run can be repeated.

        Args: `steps` are facts about the run's steps. If it is None, hide the field for a step.
        """
        self._step.set_visibility(steps is not None)
        if steps is not None:
            when = (
                "A change that begins with a later step applies to whole steps, so that the run can be repeated. A "
                "change without a step applies in the middle of the open step, and then the run cannot be repeated."
            )
            if steps.resting:
                when = f"A change applies from step {steps.now:,} on, or from a later step that you give."
            self._advice.set_text(f"{f'{steps}.'.capitalize()} {when}")

    @property
    def _at_step(self) -> int | None:
        return None if self._step.value is None else int(self._step.value)

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
        await self._changes.make(self._control.insert_rule, self.spec, index, self._at_step)
        await self._then()

    async def replace(self, which: str) -> None:
        """Replace a rule by the rule in the form."""
        await self._changes.make(self._control.replace_rule, which, self.spec, self._at_step)
        await self._then()

    async def pop(self, which: str) -> None:
        """Remove a rule."""
        await self._changes.make(self._control.pop_rule, which, self._at_step)
        await self._then()


def _number(label: str, mark: str) -> ui.number:
    return ui.number(label, min=0, precision=0, format="%d").props(f"dense data-mark={mark}").classes("w-44")


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


class RulesPage:
    """The list of the rules. It is refreshed while the experiment runs."""

    def __init__(self, cache: AnswerCache) -> None:
        self._cache = cache
        self._shown: list[RuleFacts] | None = None
        self._problem = Problem()
        with card("Rules, in the order in which messages pass them"):
            self._list = ui.column().classes("w-full gap-2").props("data-mark=rules")
            await_data(self._list)
        self._form = None if cache.control is None else RuleForm(cache, cache.control, self.show)
        ui.timer(_EVERY_S, self.show)

    async def show(self) -> None:
        """Show the present rules."""
        with self._problem.told():
            found = await self._cache.shared("rules", self._cache.source.rules, _EVERY_S / 2)
            if found != self._shown:
                self._shown = found
                self._draw(found)
            if self._form is not None:
                state = await self._cache.shared("state", self._cache.source.state, _EVERY_S / 2)
                self._form.tell(None if state is None else state.steps)

    def _draw(self, rules: Sequence[RuleFacts]) -> None:
        with refilled(self._list):
            for place, rule in enumerate(rules):
                with ui.row().classes("w-full no-wrap gap-3 items-baseline stack"):
                    ui.label(str(place)).classes("note small").style("width: 18px")
                    ui.link(rule.name, f"/search?{urlencode({'rule': rule.name})}").classes("small").style(
                        "font-size: 12.5px; width: 180px; overflow-wrap: anywhere"
                    )
                    ui.label(rule.kind).classes("note small").style("width: 120px")
                    ui.label("; ".join(filter(None, (rule.settings, rule.done)))).classes("row").style("flex: 1 1 0")
                    if rule.failures:
                        ui.label(f"failed {rule.failures:,} times: {rule.last_error}").classes("row fate-blocked")
                    if self._form is not None:
                        button("Replace", partial(self._form.replace, rule.key), "flat size=sm")
                        button("Remove", partial(self._form.pop, rule.key), "flat size=sm")
            if not rules:
                ui.label("There are no rules: each message passes.").classes("note")
