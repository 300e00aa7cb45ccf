"""The page of the dead letters."""

from functools import partial

from nicegui import ui

from ray_messaging.inspector.page_values import LetterFacts, clock, number, size
from ray_messaging.inspector.pages.layout import Changes, Problem, await_data, button, card, refilled
from ray_messaging.inspector.sources.live_control import LiveControl
from ray_messaging.inspector.web.answer_cache import AnswerCache

_EVERY_S = 5.0


class DeadLettersPage:
    """The list of the oldest dead letters. It is refreshed while the experiment runs."""

    def __init__(self, cache: AnswerCache) -> None:
        self._cache = cache
        self._shown: list[LetterFacts] | None = None
        self._problem = Problem()
        self._changes = Changes(cache)
        with card("Dead letters, the oldest first"):
            self._list = ui.column().classes("w-full gap-2").props("data-mark=letters")
            await_data(self._list)
        ui.timer(_EVERY_S, self.show)

    async def show(self) -> None:
        """Show the present dead letters."""
        with self._problem.told():
            found = await self._cache.shared("letters", self._cache.source.dead_letters, _EVERY_S / 2)
            if found is not None and found == self._shown:
                return
            self._shown = found
            with refilled(self._list):
                for letter in found or ():
                    self._letter(letter)
                if not found:
                    none = "There are none."
                    elsewhere = "They are on the server of a running experiment, not in its log."
                    ui.label(elsewhere if found is None else none).classes("note")

    def _letter(self, letter: LetterFacts) -> None:
        with ui.row().classes("w-full no-wrap gap-3 items-baseline stack"):
            ui.label(clock(letter.at)).classes("note").style("width: 130px")
            ui.label(letter.mailbox).classes("row").style("width: 140px")
            with ui.column().classes("gap-0").style("flex: 1 1 0"):
                what = f"{number(letter.messages)} messages" if letter.readable else "not readable"
                ui.label(f"{what}, {size(letter.size)}: {letter.reason}").classes("row")
                for text in letter.texts:
                    ui.label(text).classes("note mono")
            if self._cache.control is not None and letter.readable:
                requeue = partial(self._requeue, self._cache.control, letter.id)
                button("Send again", requeue, "outline size=sm", "requeue")

    async def _requeue(self, control: LiveControl, letter: str) -> None:
        await self._changes.make(control.requeue, letter)
        await self.show()
