"""The page of a local model, with sliders for its parameters, buttons that run its steps, and a map of its agents."""

from collections.abc import Mapping
from typing import Any

from nicegui import ui

from ray_messaging.common.texts import steps_done
from ray_messaging.inspector.pages.layout import Problem, card
from ray_messaging.inspector.pages.society_page import SocietyPage
from ray_messaging.inspector.sources.model_facts import ModelFacts, ModelParameter
from ray_messaging.inspector.web.answer_cache import AnswerCache

_PLAY_S = 0.15  # seconds between two steps while "Play" is on


class ModelPage:
    """The content of the page of a local model."""

    def __init__(self, cache: AnswerCache, asked: Mapping[str, str]) -> None:
        self._cache = cache
        assert isinstance(cache.source, ModelFacts)
        self._model = cache.source
        self._inputs: dict[str, Any] = {}
        self._busy = False
        with card("Model"):
            self._problem = Problem(quiet=True)
            with ui.row().classes("w-full gap-6 items-end"):
                for setting in self._model.settings:
                    self._inputs[setting.name] = self._input(setting)
                self._seed = ui.number("seed", value=self._model.seed, precision=0).props("dense data-mark=seed")
                self._seed.classes("w-24")
            with ui.row().classes("w-full gap-2 items-center"):
                ui.button("Step", on_click=self._one_step).props("dense no-caps unelevated data-mark=run-step")
                self._play = ui.button("Play", on_click=self._start_or_stop)
                self._play.props("dense no-caps unelevated data-mark=run-play")
                ui.button("Reset", on_click=self._reset).props("dense no-caps outline data-mark=run-reset")
                self._said = ui.label("").classes("row").props("data-mark=now")
        self._society = SocietyPage(cache, asked)
        self._timer = ui.timer(_PLAY_S, self._next, active=False)
        self._tell()

    def _input(self, setting: ModelParameter) -> Any:  # noqa: ANN401 - a slider, a switch or a choice
        value, mark = self._model.values[setting.name], f"data-mark=set-{setting.name}"
        if setting.options:
            return ui.select([*setting.options], label=setting.name, value=value).props(f"dense {mark}").classes("w-40")
        if isinstance(setting.default, bool):
            return ui.switch(setting.name, value=value).props(mark)
        with ui.column().classes("gap-0 w-48"):
            shown = ui.label().classes("label")
            slider = ui.slider(min=setting.low, max=setting.high, step=setting.step, value=value)
            slider.props(f'{mark} aria-label="{setting.name}"')
            shown.bind_text_from(slider, "value", lambda now: f"{setting.name} = {now:g}")
        return slider

    def _values(self) -> dict[str, Any]:
        """Return the values of the sliders, by parameter.

        Values of a whole-number slider, which may be floats, become ints.
        """
        found = {}
        for setting in self._model.settings:
            value = self._inputs[setting.name].value
            whole = isinstance(setting.default, int) and not isinstance(setting.default, bool) and not setting.options
            found[setting.name] = int(value) if whole else value
        return found

    def _tell(self) -> None:
        end = ", up to the end" if self._model.over else ""
        changed = self._values() != self._model.values or int(self._seed.value or 0) != self._model.seed
        note = " Reset begins anew with the changed parameters." if changed else ""
        self._said.set_text(f"{steps_done(self._model.step)}{end}.{note}")

    async def _one_step(self) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            before = self._model.step
            with self._problem.told():
                await self._cache.ask(self._model.advance)
            if self._model.step == before:  # the step failed, or the run has reached its end
                self._stop()
        finally:
            self._busy = False
        self._tell()
        await self._society.show_last()

    async def _next(self) -> None:
        await self._one_step()

    def _start_or_stop(self) -> None:
        self._timer.active = not self._timer.active
        self._play.set_text("Pause" if self._timer.active else "Play")

    def _stop(self) -> None:
        self._timer.active = False
        self._play.set_text("Play")

    async def _reset(self) -> None:
        self._stop()
        with self._problem.told():
            await self._cache.ask(self._model.begin, self._values(), int(self._seed.value or 0))
        self._tell()
        await self._society.show_last()
