"""The plain object that does the work of the interceptor's actor.

It answers senders over a socket, stores the rules and their state, and writes the heartbeat.
"""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Collection, Iterable
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from ray_messaging.addressing.channels import AgentId, check_id
from ray_messaging.addressing.directory import Directory
from ray_messaging.audiences.audience_kinds import Audiences
from ray_messaging.audiences.cache import AudienceCache
from ray_messaging.cluster.actors.ownership import Heartbeat, take_claim
from ray_messaging.cluster.actors.rule_editor import RuleEditor
from ray_messaging.cluster.actors.step_rule_runner import StepRuleRunner, StragglerWatch, check_step_rules
from ray_messaging.cluster.audience_files import AudienceFiles
from ray_messaging.cluster.rule_store import RuleStore, description, pickled
from ray_messaging.cluster.seat_desk import SeatDesk
from ray_messaging.cluster.spec import InterceptorSpec, PickledRule
from ray_messaging.common.task_health import TaskHealth
from ray_messaging.config import Calls, ServerConfig, Steps
from ray_messaging.default_limits_and_leases import CALLS_TOLD_S
from ray_messaging.errors import ConfigError, Fenced, InterceptorUnavailable, RuleError, UnknownName
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.interceptor.lane_server import LaneServer
from ray_messaging.interception.interceptor.rule_set import valid_rule
from ray_messaging.interception.interceptor.watchdog import Watchdog
from ray_messaging.interception.lane import LaneAddress
from ray_messaging.interception.rules import BlackList, Rule, StepRule
from ray_messaging.interception.rules.pairs import Pair, check_pairs
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.calls import CallsNow
from ray_messaging.observability.metrics.experiment_metrics import of_interceptor, of_mailboxes
from ray_messaging.observability.metrics.families import Family
from ray_messaging.observability.tracing.settings import flush_spans, tracer_of
from ray_messaging.receiving.agent_mover import AgentMover
from ray_messaging.steps.call_limits import CallLimits
from ray_messaging.steps.stragglers import Straggler
from ray_messaging.transports.backend import backend_of
from ray_messaging.transports.step_values import CHECKPOINT, CTRL_C, STANDSTILL, Progress, StepSettings, without_steps
from ray_messaging.transports.transport_values import Limits

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps

logger = logging.getLogger(__name__)

# If a rule hangs and cannot be interrupted, the process is ended after _EXIT_FACTOR times rule_timeout_s. It is not
# ended before _EXIT_LEAST_S seconds, because a shorter pause need not be a hang.
_EXIT_FACTOR, _EXIT_LEAST_S = 1.5, 5.0


class InterceptorHost:
    """The plain object that does the work of the interceptor's actor.

    It answers senders over a socket, and stores the rules and their state.

    Args: `actor` is the handle of the interceptor's actor.
    """

    def __init__(self, spec: InterceptorSpec, redis: ServerConfig, actor: object = None) -> None:
        self.experiment = spec.experiment(redis)
        self._audiences = AudienceCache(AudienceFiles(self.experiment, actor))
        self.call_limits = CallLimits(spec.calls or Calls())
        # The last report of each group about its calls through `me.remember`: the calls under way, and the time of the
        # report.
        self._calls_now: dict[str, tuple[CallsNow, float]] = {}
        self._tracer = tracer_of(spec.tracing, spec.exp_id, "interceptor")
        reset = spec.on_existing == "reset"
        stores = backend_of(redis).stores(spec.exp_id, spec.settings, run=spec.run, reset=reset)
        self.transport, self._server, self._dead_letters = stores.transport, stores.experiment, stores.dead_letters
        self.transport.called_by("the interceptor, the actor with the rules,")
        seat_timeout_s = None if spec.steps is None else spec.steps.seat_timeout_s
        self._seats = SeatDesk(self._server.seats, self._server.keep_seat, spec.settings.payload_bytes, seat_timeout_s)
        self.lane_address = LaneAddress("", 0, "")
        self._spec = spec
        self._store = RuleStore(self._server, spec.exp_id, spec.run)
        self._serving = AsyncExitStack()  # stops what the host has started, in the reverse order
        self._interceptor: Interceptor | None = None
        self._lane: LaneServer | None = None  # None until senders can connect
        self._directory = Directory(spec.exp_id)
        # `_released` has every name that was passed to `release_steps`.
        self._holding, self._released = asyncio.Lock(), set[str]()
        self.editor = RuleEditor(
            self.experiment, self._store, lambda: self.interceptor, self._server.where, self._follow_rules
        )
        self._stragglers: StragglerWatch | None = None
        self._watchdog: Watchdog | None = None
        self._step_rules: StepRuleRunner | None = None  # None: the experiment has no steps

    @property
    def interceptor(self) -> Interceptor:
        """Return the interceptor; raise InterceptorUnavailable before it has its rules."""
        if self._interceptor is None:
            raise InterceptorUnavailable(
                f"the interceptor of {self._spec.exp_id!r} has not loaded its rules yet, so no message may pass: try "
                "again"
            )
        return self._interceptor

    @property
    def steps(self) -> "RedisSteps":
        """Return the store of the experiment's steps; raise ConfigError if the experiment has no steps."""
        if self._spec.steps is None:
            raise without_steps(self._spec.exp_id)
        return self.transport.steps

    @property
    def seats(self) -> SeatDesk:
        """Return the seats, the agents for which people act; raise ConfigError if the experiment has no steps."""
        if self._spec.steps is None:
            raise without_steps(self._spec.exp_id)
        return self._seats

    @property
    def fenced(self) -> Fenced | None:
        """Return the error because of which the interceptor gives no more verdicts; None if it gives verdicts."""
        return None if self._interceptor is None else self._interceptor.fenced

    async def start(self, host: str) -> None:
        """Claim the experiment on the server, load the rules' state, and begin to answer senders at the address `host`.

        Senders ask which messages the rules let pass.

        Raises: AlreadyExists if the server has an experiment of this name and `on_existing` is "error", or is "resume"
        and that experiment still runs; Fenced if another start has claimed the experiment; RuleError if a rule cannot
        be used; ConfigError if the experiment began with other settings of steps.
        """
        # The rules are read first, so that an error is raised before anything is written.
        given = [self._store.admit(data) for data in self._spec.rules]
        check_step_rules(given, steps=self._spec.steps is not None, mirror=self._spec.settings.mirror)
        await self.transport.connect()
        if self._spec.fork is not None and await self._server.holder() is None:
            await self._load_checkpoint(self._spec.fork)
        epoch, restarted = await take_claim(self._server, self._store, self._spec)
        await begin_steps(self.transport.steps, self._spec.exp_id, self._spec.steps)
        if self._spec.steps is not None and not restarted:
            await self.steps.resume()  # an earlier start may have paused the steps, and died
            await self.steps.drop_hold(CTRL_C)
            await self.steps.drop_hold(CHECKPOINT)
        if self._spec.steps is not None:
            self.editor.use_steps(self.steps)
        await self._take_rules(epoch, given, restarted=restarted)
        self._serving.push_async_callback(self.interceptor.stop)
        self._serving.push_async_callback(Heartbeat(self._store, self.interceptor).close)
        if self._spec.log_dir is None:
            await self._retire_log()
        timeout_s = self._spec.settings.rule_timeout_s
        self._watchdog = Watchdog(
            self.interceptor.watch, rule_timeout_s=timeout_s, exit_after_s=max(_EXIT_LEAST_S, _EXIT_FACTOR * timeout_s)
        )
        self._watchdog.start()
        if self._spec.steps is not None:
            self._stragglers = StragglerWatch(self.steps, self._spec.exp_id, self._spec.steps.stall_s)
            self._serving.push_async_callback(self._stragglers.close)
            settings = await self.steps.settings() or StepSettings.of(self._spec.steps)
            self._step_rules = StepRuleRunner(self.transport, self.steps, settings, self.interceptor, self._audiences)
            self._serving.push_async_callback(self._step_rules.close)
            await self.editor.release()
            await self._step_rules.follow()
            self._serving.push_async_callback(self.editor.close)
        interceptor = self.interceptor
        lane = LaneServer(interceptor.answer, lambda asked: interceptor.snapshot(asked, len(lane.connections)))
        self._serving.push_async_callback(lane.close)
        self.lane_address = await lane.start(host)
        self._lane = lane

    async def _follow_rules(self) -> None:
        if self._step_rules is not None:
            await self._step_rules.follow()

    async def _load_checkpoint(self, step: int) -> None:
        """Copy the checkpoint after `step` from the log's folder, which is on this node, to the server."""
        from ray_messaging.eventlog.checkpoint_files import read_checkpoint  # noqa: PLC0415 - brings pyarrow, 80 MB
        from ray_messaging.eventlog.folder import Folder  # noqa: PLC0415 - as above

        assert self._spec.log_dir is not None
        copied = await asyncio.to_thread(list, read_checkpoint(Folder(self._spec.log_dir), step))
        await self.transport.checkpoints.write(copied)

    async def _take_rules(self, epoch: int, given: list[Rule], *, restarted: bool) -> None:
        kept = await self._store.load_rules() if restarted else None
        rules = given if kept is None else list(kept)
        black_list = BlackList()
        if all(rule.name != black_list.name for rule in rules):
            rules.insert(0, black_list)  # the server may already have pairs of this list
        tables, answers = await self._store.load(rules)
        if not tables[black_list.name]:
            rules = [rule for rule in rules if rule is not black_list]
        for rule in kept or ():
            if rule.state is not None and not isinstance(rule, StepRule):
                # The unpickled rule has the state that it had when it was passed to the experiment. This state is
                # dropped here. `interceptor.load` loads the newer state, which was read from the server.
                rule.state.load({})
                rule.restored()
        settings = self._spec.settings
        # An answer is stored for as long as a sender may ask again about the same batch. The sender may wait for free
        # capacity, and for a successor of this interceptor.
        keep_s = settings.send_timeout_s + 2 * settings.interceptor_timeout_s
        publish = partial(self._store.publish_snapshot, epoch) if settings.delegate_rules else None
        interceptor = Interceptor(
            self._spec.exp_id,
            rules,
            epoch=epoch,
            store=self._store,
            keep_s=keep_s,
            publish_snapshot=publish,
            versions=self.editor,
        )
        interceptor.tracer = self._tracer
        interceptor.load(tables, answers, merge=kept is None)
        if not restarted:
            interceptor.forget_calls()
            await self._store.forget_rules()
        if kept is None or len(rules) > len(kept):
            await self._store.save_rules(interceptor.rules.now)
            await interceptor.store_all()
        self._interceptor = interceptor

    async def _retire_log(self) -> None:
        """Remove the log stream of an earlier start from the server.

        Nobody reads it any more, so it would fill up and stop senders.
        """
        if (await self.transport.load_directory(-1)).logged:
            settings = self._spec.settings
            epoch = await self.transport.log.register(
                Limits(settings.mailbox_messages, settings.mailbox_bytes, settings.lease_s, leased=False)
            )
            await self.transport.log.unregister(epoch)

    # -- rules at run time ----------------------------------------------------------------------------------------

    def checked(self, rule: Any) -> PickledRule:  # noqa: ANN401 - as a user passes it
        """Return the pickle of a rule; raise RuleError for a rule that this experiment cannot use."""
        valid_rule(rule)
        check_step_rules([rule], steps=self._spec.steps is not None, mirror=self._spec.settings.mirror)
        if isinstance(rule, StepRule):
            rule.admission = secrets.token_hex(8)
        return pickled(rule)

    async def described_rules(self) -> list[dict[str, Any]]:
        """Return a description of each rule, in order, with the count of its failures and the last error."""
        if self.editor.first < math.inf:
            await self.editor.apply(await self.editor.following())
        failures = self.interceptor.failures
        return [description(rule) | failures.of(rule) for rule in self.interceptor.rules]

    async def step_progress(self) -> Progress:
        """Return the progress of the steps of all groups; raise ConfigError if the experiment has no steps."""
        progress = await self.steps.progress()
        return progress if self._step_rules is None else self._step_rules.named(progress)

    async def hold_steps(self, name: str) -> int:
        """Let no further step begin, even if somebody calls `resume`. Return the last step that may have begun.

        Calls to an actor can overtake each other. So if `release_steps` was already called with this name, steps are
        not held.
        """
        async with self._holding:
            if name not in self._released:
                await self.steps.hold(CTRL_C, STANDSTILL)
        progress = await self.steps.progress()
        return progress.latest if progress.target is None else min(progress.latest, progress.target)

    async def release_steps(self, name: str) -> None:
        """Undo `hold_steps(name)`, so that steps can begin again.

        If the two calls arrive in the wrong order, the later `hold_steps` with this name does nothing.
        """
        async with self._holding:
            self._released.add(name)
            await self.steps.drop_hold(CTRL_C)

    @property
    def black_lists(self) -> list[BlackList]:
        """Return the black lists among the rules. The first one has the pairs of `black_set`."""
        return [rule for rule in self.interceptor.rules if isinstance(rule, BlackList)]

    async def edit_pairs(self, change: str, pairs: Iterable[Pair] | Pair) -> None:
        """Change the black set: `change` is "add", "remove", or "set", which replaces all pairs (sender, receiver).

        Raises: RuleError for pairs that are not valid.
        """
        wanted = check_pairs(pairs, BlackList.name)
        if self.black_lists or change != "remove":  # without a black list there is nothing to remove
            await self.editor.edit_state(
                f"{change} pairs", lambda: getattr(self.interceptor.black_list, change)(wanted), BlackList.name
            )

    async def new_round(self, call: str) -> None:
        """Begin a new round for all rules that count by rounds; raise RuleError if a rule's `new_round` failed.

        Args: `call` is the id of the Ray call. If Ray repeats the call, the round still begins only once.
        """
        failures = await self.editor.change(lambda: self.interceptor.new_round_once(call))
        if failures:
            names = ", ".join(map(repr, failures))
            raise RuleError(
                f"a new round has begun, but new_round() failed in the rules {names}, which still have the counts of "
                "the old round: see the errors in the interceptor's log",
                rule=failures[0],
            )

    # -- state ----------------------------------------------------------------------------------------------------

    async def groups(self) -> list[str]:
        """Return the names of the groups: mailboxes whose agents no other mailbox may host."""
        await self._reload()
        return [name for name, record in self._directory.records.items() if record.exclusive]

    async def hosted(self, groups: Collection[str]) -> dict[str, AgentSet]:
        """Return the agents of each of the given groups, by the group's name. Groups without a mailbox are left out."""
        await self._reload()
        records = self._directory.records
        return {name: records[name].agents() for name in groups if name in records}

    async def moved(self) -> dict[str, AgentSet]:
        """Return, for each group that agents have left or joined, its agents now."""
        await self._reload()
        return {name: record.agents() for name, record in self._directory.records.items() if record.moved}

    async def move(self, agents: AgentSet, source: str, target: str, timeout: float) -> None:
        """Move agents to another group, in an experiment with steps.

        Raises the same errors as `Messaging.move_agents`.
        """
        await AgentMover(self.transport, Directory(self._spec.exp_id), agents, source, target).run(timeout)

    async def agents(self) -> dict[str, AgentSet]:
        """Return all agents that groups host, by group."""
        await self._reload()
        return {name: record.agents() for name, record in self._directory.records.items() if record.exclusive}

    async def owner_of(self, agent_id: AgentId) -> str | None:
        """Return the group that hosts an agent, or None if no group does."""
        await self._reload()
        found = self._directory.owner_of({check_id(agent_id)}, besides="")
        return None if found is None else found[1]

    async def audiences(self) -> Audiences:
        """Return the audiences of the experiment as they are now."""
        await self._reload()
        return self._directory.audiences

    async def _reload(self) -> None:
        self._directory.update(*await self.transport.load_directory(self._directory.version))

    def late_groups(self) -> list[Straggler]:
        """Return the late groups of the last check, which kept a step waiting for `Steps.stall_s` or were cut off.

        A group is cut off if its driver has not called the server for some time.
        """
        return [] if self._stragglers is None else self._stragglers.late

    def tell_calls(self, group: str, now: CallsNow) -> None:
        """Record `now`, the calls through `me.remember` that a group has under way."""
        self._calls_now[group] = now, time.monotonic()

    def calls_now(self) -> dict[str, CallsNow]:
        """Return the calls through `me.remember` that are under way, by group.

        A group is left out if it has not reported its calls in the last few seconds.
        """
        since = time.monotonic() - 5 * CALLS_TOLD_S
        return {group: now for group, (now, told_at) in self._calls_now.items() if told_at >= since}

    def loops(self) -> list[TaskHealth]:
        """Return the health of the socket on which senders ask for verdicts, and of the task for whole-step rules."""
        step_rules = [] if self._step_rules is None else self._step_rules.health()
        serving = self._lane is not None and self._lane.serving
        return [TaskHealth("lane", serving, busy=False, age_s=0.0), *step_rules]

    async def stats(self) -> dict[str, Any]:
        """Return the interceptor's `counters`, and counts of waiting messages and dead letters.

        `waiting` has the number of waiting messages of each mailbox.
        """
        waiting, dead = await self.transport.waiting(), await self._dead_letters.facts()
        return self.counters() | {"waiting": waiting, "dead_letters": dead._asdict()}

    def counters(self) -> dict[str, Any]:
        """Return the interceptor's counters and the names of its rules, without a call to the server."""
        return {
            "epoch": self.interceptor.epoch,
            "rules": self.interceptor.rules.names,
            "judged": self.interceptor.judged,
            "blocked": self.interceptor.blocked,
            "deferred": self.interceptor.deferred,
            "lane_connections": 0 if self._lane is None else len(self._lane.connections),
            "lane_refused": 0 if self._lane is None else self._lane.refused,
            "delegated": self.interceptor.delegation.offer > 0,
            "server_behind": self.interceptor.server_behind,
            "rule_failures": self.failures(),
            "rule_seconds": dict(self.interceptor.watch.spent),
            "kept": self.interceptor.kept(),
            "stragglers": {late.group: late.idle_s for late in self.late_groups()},
        }

    async def families(self) -> list[Family]:
        """Return the interceptor's metrics, and the mailboxes' metrics if the server answers."""
        facts = await asyncio.to_thread(backend_of(self.experiment.redis).probe, self._spec.exp_id)
        return [*of_interceptor(self.counters()), *(() if facts.kept is None else of_mailboxes(facts.kept))]

    def failures(self) -> dict[str, dict[str, Any]]:
        """Return the rules that have failed, by name. Each value has the keys of `RuleFailures.of`."""
        interceptor = self.interceptor
        return {rule.name: found for rule in interceptor.rules if (found := interceptor.failures.of(rule))}

    def reset_failures(self, which: int | str | None = None) -> None:
        """Reset the failures of a rule (None: of all rules), so that its next failure is logged again.

        Raises: RuleError if there is no such rule.
        """
        interceptor = self.interceptor
        for rule in interceptor.rules.now if which is None else [interceptor.rules.get(which)]:
            interceptor.failures.forget(rule)

    async def remove(self, name: str) -> int:
        """Remove a mailbox and the state of its sender.

        Returns: how many frames, each with a batch of messages, were in the mailbox and not read.
        """
        if self._spec.steps is not None:
            with suppress(UnknownName):  # raised if the group has not joined the steps
                await self.steps.leave(name, at_once=True)
        frames = await self.transport.remove(name, None)
        await self._server.forget_sender(name)
        return frames

    async def close(self, *, erase: bool) -> None:
        """End the experiment; with `erase`, delete its data from the server, even if closing a rule fails."""
        try:
            await self._serving.aclose()
        finally:
            await self._store.forget_rules()
            if erase:
                await self._server.erase()
            await self._release()

    async def abandon(self) -> None:
        """Stop serving, and leave the experiment's data to another process."""
        await self._serving.aclose()
        await self._release()

    async def _release(self) -> None:
        interceptor, self._interceptor = self._interceptor, None
        if interceptor is not None:
            await interceptor.close()
        if self._watchdog is not None:
            self._watchdog.stop()
        await self.transport.close()
        await flush_spans(self._spec.tracing)


async def begin_steps(store: "RedisSteps", exp_id: str, steps: Steps | None) -> None:
    """Set up the steps of an experiment; raise ConfigError if the experiment began with other settings of steps."""
    given = None if steps is None else StepSettings.of(steps)
    kept = await (store.settings() if given is None else store.begin(given))
    if kept != given:
        raise ConfigError(
            f"experiment {exp_id!r} began with {_steps_text(kept)}, and this start has "
            f"{_steps_text(given)}{_difference(kept, given)}: resume the experiment with the settings that it began "
            "with, or begin anew by on_existing='reset'"
        )


def _difference(kept: StepSettings | None, given: StepSettings | None) -> str:
    if kept is None or given is None:
        return ""
    pairs = zip(kept._fields, kept, given, strict=True)
    return "; " + ", ".join(f"{name} was {before!r} and is {now!r}" for name, before, now in pairs if before != now)


def _steps_text(steps: StepSettings | None) -> str:
    if steps is None:
        return "no steps"
    groups, mode = steps.groups or None, str(steps.wait_for)
    return f"Steps(seed={steps.seed}, wait_for={mode!r}, groups={groups}, digest={steps.digest})"
