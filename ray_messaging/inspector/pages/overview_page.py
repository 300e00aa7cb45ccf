"""The overview page: messages by step or second, the network of agents, steps, health."""

from nicegui import ui

from ray_messaging.inspector.page_values import BusiestAgents, Series, State, StepFacts, TrafficBins, cut, name, number
from ray_messaging.inspector.pages import charts
from ray_messaging.inspector.pages.layout import (
    LEVELS,
    Changes,
    Problem,
    await_data,
    button,
    card,
    chart,
    draw,
    fact,
    figure,
    refilled,
    say,
)
from ray_messaging.inspector.sources.live_control import LiveControl
from ray_messaging.inspector.web.answer_cache import AnswerCache
from ray_messaging.model.fates import BLOCKED, FATES
from ray_messaging.observability.health.findings import Health

_EVERY_S = 1.0
_STATE_S, _HEALTH_S, _SOCIETY_S, _SIDE_S = 1.5, 15.0, 5.0, 3.0
_OF_A_LOG = ("rows", "rate", "blocked")
_PROBLEMS = 6
_DEPTHS = 6
_NAMED = 5


class StepPanel:
    """The panel about the steps, if the experiment has any."""

    def __init__(self, cache: AnswerCache) -> None:
        self._cache = cache
        with card("Steps") as self._card:
            self._said = ui.label("").classes("row").props("data-mark=steps")
            await_data(self._said)
            self._waiting = ui.label("").classes("note").props("data-mark=waiting")
            self._stragglers = ui.label("").classes("note")
            if cache.control is not None:
                with ui.row().classes("gap-2 items-center"):
                    self._buttons(cache.control)

    def _buttons(self, control: LiveControl) -> None:
        self._changes = Changes(self._cache)
        button("Pause", lambda: self._changes.make(control.pause), "outline size=sm")
        button("Resume", lambda: self._changes.make(control.resume), "outline size=sm")
        steps = ui.number(value=1, min=1, max=1_000_000, precision=0).props(
            'dense data-mark=steps-more aria-label="steps"'
        )
        steps.classes("w-16")
        button("Advance", lambda: self._changes.make(control.advance, int(steps.value or 1)), "outline size=sm")

    def show(self, state: State) -> None:
        """Show how far the steps are, and for which groups they wait."""
        if state.steps is None:
            self._card.set_visibility(False)
            return
        self._card.set_visibility(True)
        steps = state.steps
        say(self._said, f"{steps}.".capitalize())
        self._waiting.set_text(_waited_for(steps))
        self._stragglers.set_text(cut("; ".join(steps.stragglers), 400))


def _waited_for(steps: StepFacts) -> str:
    if not steps.waiting:
        return "" if steps.resting else "No group is waited for."
    some = [f"{name(group)} (step {step:,})" for group, step in sorted(steps.waiting.items())[:_NAMED]]
    more = f" and {len(steps.waiting) - _NAMED} more" if len(steps.waiting) > _NAMED else ""
    return f"Waited for: {', '.join(some)}{more}."


def _sampled(found: TrafficBins | BusiestAgents) -> str:
    return f", estimated from {found.share:.1%} of the rows" if found.share < 1 else ""


def _period(traffic: TrafficBins, *, live: bool) -> str:
    sampled = _sampled(traffic)
    if traffic.in_steps:
        return f"Per step, of {'the last steps' if live else 'the whole run'}{sampled}."
    return f"Per second, of {'the last minute' if live else 'the whole run'}{sampled}."


class OverviewPage:
    """The content of the overview page. It is refreshed all the time."""

    def __init__(self, cache: AnswerCache) -> None:
        self._cache, self._source = cache, cache.source
        self._problem = Problem(quiet=True)  # quiet, because each card shows by itself that it waits for data
        with ui.row().classes("w-full gap-3"):
            self._figures = {
                key: figure(key, label)
                for key, label in (
                    ("rows", "rows in the log"),
                    ("rate", "messages per second"),
                    ("blocked", "blocked"),
                    ("waiting", "waiting in mailboxes"),
                    ("letters", "dead letters"),
                )
                if cache.source.live or key in _OF_A_LOG
            }
        with ui.row().classes("w-full no-wrap gap-3 stack"):
            with ui.column().classes("gap-3").style("flex: 2 1 0; min-width: 0"):
                with card("Messages, by fate"):
                    self._rates = chart("rates", 190)
                    self._period = ui.label().classes("note").props("data-mark=period")
                    await_data(self._rates)
                with card("Blocked messages, by rule") as self._blocks:
                    self._blocked = chart("blocked", 150)
                with card("Collected, by step") as self._collects:
                    self._collected = chart("collected", 190)
                with card("Who writes to whom") as self._network:
                    self._society = chart("society", 400)
                    await_data(self._society)
                    self._members = ui.label().classes("note").props("data-mark=members")
            with ui.column().classes("gap-3").style("flex: 1 1 0; min-width: 0"):
                if cache.source.live:
                    self._steps = StepPanel(cache)
                    with card("Waiting in mailboxes"):
                        self._depths = ui.column().classes("gap-1 w-full").props("data-mark=depths")
                        await_data(self._depths)
                    with card("Health"):
                        self._health = ui.column().classes("gap-1 w-full").props("data-mark=health")
                        await_data(self._health)
                else:
                    with card("The run"):
                        self._record = ui.column().classes("gap-1 w-full").props("data-mark=record")
                        await_data(self._record)
        self._known: Health | None = None
        self._deep: list[tuple[str, int]] | None = None
        self._blocks.set_visibility(False)
        self._collects.set_visibility(False)
        ui.timer(_EVERY_S, self.renew)
        ui.timer(_SIDE_S, self.renew_society)
        ui.timer(_SIDE_S, self.renew_side)

    async def renew(self) -> None:
        """Show how many messages there are by step or time, how many wait in mailboxes, and how far the steps are."""
        source = self._source
        with self._problem.told("the state"):
            state = await self._cache.shared("state", source.state, _STATE_S)
            if state is not None:
                self._steps.show(state)
                self._show_depths(state)
                self._show_figures(waiting=number(sum(state.waiting.values())), letters=number(state.dead_letters))
        with self._problem.told("the log"):
            self._show(await self._cache.shared("traffic", source.traffic, 0.9 * _EVERY_S))

    async def renew_society(self) -> None:
        """Show who writes to whom."""
        with self._problem.told("the society"):
            self._show_society(await self._cache.shared("society", self._source.society, _SOCIETY_S))

    async def renew_side(self) -> None:
        """Show the health of a running experiment, or the collected values and the record of a run that has ended.

        A check of the health may take seconds.
        """
        source = self._source
        with self._problem.told("the run"):
            if not source.live:
                self._show_series(await self._cache.shared("series", source.series, _HEALTH_S))
                self._show_record(await self._cache.shared("record", source.record, _HEALTH_S))
                return
            health = await self._cache.shared("health", source.health, _HEALTH_S)
            await self._cache.follow()
            # If the source has changed, the run has ended meanwhile, and its health does not matter.
            if self._cache.source is source:
                self._show_health(health)

    def _show(self, traffic: TrafficBins | None) -> None:
        self._rates.set_visibility(traffic is not None)
        if traffic is None:
            self._period.set_text(
                "This experiment keeps no event log, so its messages cannot be seen: start it with log_dir=..."
            )
            self._show_figures(**dict.fromkeys(_OF_A_LOG, number(None)))
            return
        self._blocks.set_visibility(bool(traffic.blocked))
        draw(self._rates, charts.rates(traffic))
        draw(self._blocked, charts.blocked(traffic))
        self._period.set_text(_period(traffic, live=self._source.live))
        stopped = traffic.total(FATES[BLOCKED])
        share = f"{stopped / traffic.messages:.1%}" if traffic.messages else "0%"
        self._show_figures(rows=number(traffic.rows), rate=number(traffic.per_second), blocked=share)

    def _show_figures(self, **shown: str) -> None:
        for key, text in shown.items():
            say(self._figures[key], text)

    def _show_society(self, society: BusiestAgents | None) -> None:
        self._network.set_visibility(society is not None)
        if society is None:
            return
        draw(self._society, charts.network(society))
        of = "the last messages" if self._source.live else "the whole run"
        text = "Nobody has written to an agent."
        if society.agents:
            who = f"The {len(society.agents)} of {society.writers:,} agents that write most"
            if len(society.agents) == society.writers:
                who = f"All {society.writers:,} agents that have written"
            how = "more messages make it darker and larger"
            if society.measure:
                how = f"more messages make it larger; its colour is {society.measure} in the last step"
            text = f"{who}, in {of}{_sampled(society)}. Each circle is an agent: {how}."
        self._members.set_text(text)

    def _show_series(self, found: Series | None) -> None:
        self._collects.set_visibility(found is not None)
        if found is not None:
            draw(self._collected, charts.collected(found))

    def _show_record(self, record: list[tuple[str, str]]) -> None:
        if self._record.default_slot.children:
            return
        with refilled(self._record):
            for title, value in record:
                fact(title, value)

    def _show_depths(self, state: State) -> None:
        queues = sorted(state.waiting.items(), key=lambda queue: (-queue[1], queue[0]))
        longest = queues[:_DEPTHS]
        if longest == self._deep:
            return
        self._deep = longest
        with refilled(self._depths):
            for mailbox, waiting in longest:
                share = waiting / max(1, longest[0][1])
                with ui.row().classes("w-full no-wrap items-center gap-2"):
                    ui.label(name(mailbox)).classes("note").style("width: 45%")
                    with ui.element("div").style("flex: 1 1 0"):
                        ui.element("div").classes("depth").style(f"width: {share:.1%}")
                    ui.label(number(waiting)).classes("note")
            if rest := sum(waiting for _, waiting in queues[_DEPTHS:]):
                ui.label(f"{number(rest)} in {len(queues) - _DEPTHS:,} more").classes("note")
            if not queues:
                ui.label("There are no mailboxes yet.").classes("note")

    def _show_health(self, health: Health | None) -> None:
        if health is self._known and self._health.default_slot.children:
            return
        self._known = health
        with refilled(self._health):
            if health is None:
                return
            problems = health.problems
            with ui.row().classes("items-center gap-2"):
                ui.icon("circle", size="10px").style(f"color: {LEVELS[health.level]}")
                ui.label(f"{health.level}, {len(health.findings)} checks").classes("row")
            for found in problems[:_PROBLEMS]:
                with ui.row().classes("no-wrap gap-2 items-start"):
                    ui.icon("circle", size="7px").style(f"color: {LEVELS[found.level]}; margin-top: 5px")
                    with ui.column().classes("gap-0"):
                        ui.label(cut(f"{found.what}: {found.value}", 300)).classes("row")
                        ui.label(cut(found.remedy, 300)).classes("note")
            if problems[_PROBLEMS:]:
                ui.label(f"and {len(problems) - _PROBLEMS} more").classes("note")
