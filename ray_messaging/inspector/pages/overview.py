"""The overview page: flow between groups, rates, steps, health."""

from nicegui import ui

from ray_messaging.inspector.pages import charts
from ray_messaging.inspector.pages.layout import LEVELS, Changes, Problem, button, card
from ray_messaging.inspector.server.answer_cache import AnswerCache
from ray_messaging.inspector.sources.live_control import LiveControl
from ray_messaging.inspector.values import GroupFacts, State, StepFacts, Traffic, cut, name, number
from ray_messaging.observability.health.findings import Health, worst_first

_EVERY_S = 1.0
_STATE_S, _HEALTH_S, _SIDE_S = 1.5, 15.0, 3.0
_OF_A_LOG = ("rows", "rate", "blocked")
_PROBLEMS = 6
_DEPTHS = 6
# A browser without a graphics processor draws the moving dots on the CPUs that the run needs. Sixty pictures a second
# take a third of a CPU, eight take a thirtieth.
_CALM = """<script>
(() => {
  const draw = window.requestAnimationFrame.bind(window)
  window.requestAnimationFrame = picture => setTimeout(() => draw(picture), 110)
  window.cancelAnimationFrame = number => clearTimeout(number)
})()
</script>"""


_NAMED = 5


class StepPanel:
    """The panel about the steps, if the experiment has any."""

    def __init__(self, cache: AnswerCache) -> None:
        self._cache = cache
        with card("Steps"):
            self._said = ui.label("").classes("row").props("data-mark=steps")
            self._waiting = ui.label("").classes("note").props("data-mark=waiting")
            self._stragglers = ui.label("").classes("note")
            if cache.control is not None:
                self._controls = ui.row().classes("gap-2 items-center")
                with self._controls:
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
        if self._cache.control is not None:
            self._controls.set_visibility(visible)


def _said(steps: StepFacts) -> str:
    paused = "" if steps.target is None else f"; paused after step {steps.target:,}"
    return f"Step {steps.now:,} is open{paused}."


def _waited_for(steps: StepFacts) -> str:
    if not steps.waiting:
        return "Nobody is waited for."
    some = [f"{name(group)} (step {step:,})" for group, step in sorted(steps.waiting.items())[:_NAMED]]
    more = f" and {len(steps.waiting) - _NAMED} more" if len(steps.waiting) > _NAMED else ""
    return f"Waited for: {', '.join(some)}{more}."


class Overview:
    """The content of the page. It is refreshed all the time."""

    def __init__(self, cache: AnswerCache) -> None:
        self._cache = cache
        if cache.source.live:
            ui.add_head_html(_CALM)
        self._problem = Problem()
        with ui.row().classes("w-full no-wrap gap-3"):
            self._figures = {
                key: self._figure(label, key)
                for key, label in (
                    ("rows", "rows in the log"),
                    ("rate", "messages per second"),
                    ("blocked", "blocked"),
                    ("waiting", "waiting in mailboxes"),
                    ("letters", "dead letters"),
                    ("step", "open step"),
                )
                if cache.source.live or key in _OF_A_LOG
            }
        with ui.row().classes("w-full no-wrap gap-3 items-stretch"):
            with card("Flow between groups", grow="2 1 0") as column:
                column.style("min-height: 372px")
                self._flows = (
                    ui.echart({"series": []}).classes("w-full").style("height: 330px").props("data-mark=flows")
                )
                self._period = ui.label().classes("note")
            with ui.column().classes("gap-3").style("flex: 1 1 0; min-width: 0"):
                if cache.source.live:
                    self._steps = StepPanel(cache)
                    with card("Waiting in mailboxes"):
                        self._depths = ui.column().classes("gap-1 w-full").props("data-mark=depths")
                    with card("Health"):
                        self._health = ui.column().classes("gap-1 w-full").props("data-mark=health")
                else:
                    with card("The run"):
                        self._record = ui.column().classes("gap-1 w-full").props("data-mark=record")
        with ui.row().classes("w-full no-wrap gap-3"):
            with card("Messages per second, by fate", grow="1 1 0"):
                self._rates = (
                    ui.echart({"series": []}).classes("w-full").style("height: 176px").props("data-mark=rates")
                )
            with card("Blocked per second, by rule", grow="1 1 0"):
                self._blocked = (
                    ui.echart({"series": []}).classes("w-full").style("height: 176px").props("data-mark=blocked")
                )
        self._seen: Traffic | None = None
        self._known: Health | None = None
        self._deep: list[GroupFacts] | None = None
        ui.timer(_EVERY_S, self.renew)
        ui.timer(_SIDE_S, self.renew_side)

    def _figure(self, label: str, key: str) -> ui.label:
        with ui.column().classes("card gap-0").style("flex: 1 1 0"):
            value = ui.label("\u2013").classes("value").props(f"data-mark=figure-{key}")
            ui.label(label).classes("label")
        return value

    async def renew(self) -> None:
        """Show the newest values."""
        source = self._cache.source
        with self._problem.told():
            traffic = await self._cache.shared("traffic", source.traffic, 0.9 * _EVERY_S)
            state = await self._cache.shared("state", source.state, _STATE_S)
            self._show(traffic, state)

    async def renew_side(self) -> None:
        """Show the health, whose check may take seconds, or for an ended run its record."""
        source = self._cache.source
        with self._problem.told():
            if source.live:
                self._show_health(await self._cache.shared("health", source.health, _HEALTH_S))
            elif not self._record.default_slot.children:
                self._show_record(await self._cache.shared("record", source.record, _HEALTH_S))

    def _show(self, traffic: Traffic | None, state: State | None) -> None:
        depths = {} if state is None else {name(group.name): group.waiting or 0 for group in state.groups}
        if traffic is not None and traffic is not self._seen:
            self._seen = traffic
            self._draw(self._flows, charts.flows(traffic, depths))
            self._draw(self._rates, charts.rates(traffic))
            self._draw(self._blocked, charts.blocked(traffic))
            sampled = f", estimated from {traffic.share:.1%} of the rows" if traffic.share < 1 else ""
            of = "the last minute" if self._cache.source.live else "the whole run"
            self._period.set_text(f"Of {of}{sampled}. Dots move where messages flow; a red ring is of blocked ones.")
        elif traffic is None:
            self._period.set_text("This experiment keeps no event log, so its messages cannot be seen: log_dir=...")
        self._show_figures(traffic, state)
        if state is not None:
            self._steps.show(state)
            self._show_depths(state)

    def _show_figures(self, traffic: Traffic | None, state: State | None) -> None:
        shown: dict[str, str] = {}
        if traffic is not None:
            stopped = traffic.total("blocked")
            shown["rows"] = number(traffic.rows)
            shown["rate"] = number(traffic.messages / traffic.seconds)
            shown["blocked"] = f"{stopped / traffic.messages:.1%}" if traffic.messages else "0%"
        if state is not None:
            shown["waiting"] = number(sum(group.waiting or 0 for group in state.groups))
            shown["letters"] = number(state.dead_letters)
            shown["step"] = "none" if state.steps is None else number(state.steps.now)
        for key, text in shown.items():
            self._figures[key].set_text(text)

    def _show_record(self, record: list[tuple[str, str]]) -> None:
        with self._record:
            for title, value in record:
                with ui.row().classes("w-full no-wrap gap-2 items-baseline"):
                    ui.label(title).classes("note").style("flex: 0 0 112px")
                    ui.label(value).classes("row")

    def _show_depths(self, state: State) -> None:
        """Show the longest queues, as bars."""
        groups = sorted(state.groups, key=lambda group: -(group.waiting or 0))
        longest = groups[:_DEPTHS]
        if longest == self._deep:
            return
        self._deep = longest
        self._depths.clear()
        with self._depths:
            for group in longest:
                share = (group.waiting or 0) / max(1, longest[0].waiting or 0)
                with ui.row().classes("w-full no-wrap items-center gap-2"):
                    ui.label(name(group.name)).classes("note ellipsis").style("width: 90px")
                    ui.element("div").classes("depth").style(f"width: calc((100% - 170px) * {share:.3f})")
                    ui.label(number(group.waiting)).classes("note")
            if rest := sum(group.waiting or 0 for group in groups[_DEPTHS:]):
                ui.label(f"{number(rest)} in {len(groups) - _DEPTHS:,} others").classes("note")
            if not groups:
                ui.label("There are no mailboxes yet.").classes("note")

    def _show_health(self, health: Health | None) -> None:
        if health is self._known and self._health.default_slot.children:
            return
        self._known = health
        self._health.clear()
        with self._health:
            if health is None:
                return
            problems = [found for found in worst_first(health.findings) if found.level != "ok"]
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

    @staticmethod
    def _draw(chart: ui.echart, options: charts.Options) -> None:
        chart.options.clear()
        chart.options.update(options)
        chart.update()
