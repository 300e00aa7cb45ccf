"""The Ray actor of the interceptor.

Ray wraps every method of an actor class, which makes calls slow, so the work is done by plain classes elsewhere. Ray
loads this file in every process that has a handle of the actor, such as each group's process. So modules that only the
actor needs are imported when the actor starts.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from functools import partial
from inspect import unwrap
from typing import TYPE_CHECKING, Any

import ray
from ray.util import get_node_ip_address

from ray_messaging.addressing.channels import AgentId, check_id
from ray_messaging.cluster.actors.restarts import ActorStart, OfHost, unreachable
from ray_messaging.cluster.embedded_servers import embedded_config, lost_server
from ray_messaging.cluster.handles.connection import NAMESPACE
from ray_messaging.cluster.ray_metrics import SERVER_S, RayMetrics
from ray_messaging.cluster.reachability import Address, measure
from ray_messaging.cluster.spec import Experiment, InterceptorSpec, no_log
from ray_messaging.common.process_tuning import tune_process
from ray_messaging.config import ServerConfig
from ray_messaging.errors import ConfigError, MessagingError
from ray_messaging.interception.rules import Rule
from ray_messaging.interception.rules.pairs import Pair
from ray_messaging.observability.health.findings import Report
from ray_messaging.observability.metrics.families import Family
from ray_messaging.steps.step_account import sealed_counts, sealed_history

if TYPE_CHECKING:
    from ray_messaging.cluster.actors.interceptor_host import InterceptorHost

# On Ray Client, `ray.method` is a wrapper that refuses the actor's options. This is the function that it wraps.
_method = unwrap(ray.method)


of_host = OfHost["InterceptorHost"]()


class InterceptorActor:
    """Ray actor that judges messages by the rules, and tells other processes the experiment's settings and groups.

    Other processes find the actor by its name.
    """

    # Ray runs an async __init__ in the actor's event loop, also after each restart.
    async def __init__(  # type: ignore[misc]
        self, spec: InterceptorSpec, redis: ServerConfig | None
    ) -> None:
        self._embedded = spec if redis is None else None
        self._newest: InterceptorHost | None = None
        self._start = ActorStart(f"the interceptor of {spec.exp_id}", partial(self._begin, spec, redis), unreachable)
        await self._start.run()
        self._metrics: RayMetrics | None = None
        if spec.metrics:
            self._metrics = RayMetrics(self._families, (("experiment", spec.exp_id),), SERVER_S)
            self._metrics.start()
        tune_process()

    async def _begin(self, spec: InterceptorSpec, redis: ServerConfig | None) -> None:
        from ray_messaging.cluster.actors.interceptor_host import InterceptorHost  # noqa: PLC0415 - see above

        config, me = await embedded_config(spec) if redis is None else redis, ray.get_runtime_context().current_actor
        self._newest = InterceptorHost(spec, config, me)
        try:
            await self._newest.start(get_node_ip_address())
        except BaseException:
            await self._newest.abandon()
            raise

    @property
    def _host(self) -> "InterceptorHost":
        """Return the plain object that does the actor's work.

        Raises: the error that prevents the start of this object; Fenced if a later start of the experiment has
        replaced this interceptor.
        """
        self._start.check()
        assert self._newest is not None
        if self._newest.fenced is not None:
            raise self._newest.fenced.with_traceback(None)
        return self._newest

    async def ready(self) -> Experiment:
        """Wait until the interceptor runs, and return the experiment's facts.

        Raises: the error that prevents the start.
        """
        return self._host.experiment

    # Ray's retries are off, because callers repeat the call themselves, and sooner than Ray would.
    @_method(max_task_retries=0)  # type: ignore[untyped-decorator]
    async def lane(self, exp_id: str | None = None) -> tuple[str, int, str]:
        """Return host, port and token of the verdict lane, the socket on which messagers ask for verdicts.

        Args:
            exp_id: The messager's experiment. None: a messager without an experiment (see `compat.mqtt`).
        Raises: ConfigError if the messager belongs to another experiment.
        """
        self._check_ours(exp_id)
        return self._host.lane_address

    def _check_ours(self, exp_id: str | None) -> None:
        """Raise ConfigError if the caller belongs to another experiment than this interceptor.

        All other code compares only the epochs of interceptors. These are small numbers, and two experiments may have
        equal ones.
        """
        ours = self._host.experiment.exp_id
        if exp_id not in {None, ours}:
            raise ConfigError(
                f"a messager of experiment {exp_id!r} was given the interceptor of experiment {ours!r}: pass "
                f"Messaging.connect({exp_id!r}).interceptor to that messager"
            )

    async def forward(self, from_id: AgentId | None, to_id: AgentId | None, msg: Any) -> bool:  # noqa: ANN401 - any value
        """Return whether the rules let a message pass."""
        return await self._host.interceptor.forward(from_id, to_id, msg)

    async def forward_batch(self, request: bytes, patient: bool, exp_id: str | None = None) -> bytes:  # noqa: FBT001 - by Ray call
        """Return the rules' verdicts on a batch of messages, encoded as bytes.

        A sender makes this Ray call if it does not ask over a socket.

        Args: `patient` is True if the request is about messages that wait for a slow rule: the answer may take long.
        `exp_id` is the messager's experiment.
        """
        self._check_ours(exp_id)
        answer = self._host.interceptor.answer(request, patient=patient)
        return answer if isinstance(answer, bytes) else await answer

    # -- control: a change without at_step applies to every send that begins after the call has returned ------------

    rules = of_host(lambda host: host.described_rules)
    rule_changes = of_host(lambda host: host.editor.changes)
    reset_rule_failures = of_host(lambda host: host.reset_failures)

    async def new_round(self) -> None:
        """Begin a new round for all rules that count by rounds.

        Raises: RuleError if the `new_round` of a rule failed.
        """
        await self._host.new_round(_call())

    async def insert_rule(self, rule: Rule, index: int | None = None, *, at_step: int | None = None) -> None:
        """Insert a rule before the rule at `index` (None: at the end).

        Args: `at_step` is the first step to which the change applies (None: the change applies at once).
        Raises: RuleError for a rule or an index that cannot be used; ConfigError if `at_step` is too early, or the
        experiment has no steps.
        """
        await self._edit("insert", index, at_step, rule)

    async def replace_rule(self, which: int | str, rule: Rule, *, at_step: int | None = None) -> None:
        """Replace a rule, given by position or name. Raises the same errors as `insert_rule`."""
        await self._edit("replace", which, at_step, rule)

    async def pop_rule(self, which: int | str = -1, *, at_step: int | None = None) -> dict[str, Any]:
        """Remove a rule, given by position or name; return its description. Raises the same errors as `insert_rule`."""
        return await self._edit("remove", which, at_step)

    async def _edit(
        self, change: str, which: int | str | None, at_step: int | None, rule: Rule | None = None
    ) -> dict[str, Any]:
        from ray_messaging.cluster.actors.rule_editor import RuleRequest  # noqa: PLC0415 - see above

        host = self._host
        given = None if change == "remove" else host.checked(rule)
        return await host.editor.edit(RuleRequest(_call(), change, which, given, at_step))

    async def violation_counts(self) -> dict[AgentId | None, int]:
        """Return, for each sender (None: the user), how many of its messages the rules have blocked."""
        return dict(self._host.interceptor.violations)

    async def reset_violation_counts(self, agents: Iterable[AgentId] | AgentId | None = None) -> None:
        """Reset the number of blocked messages of one agent or of several agents (None: of all agents)."""
        counts = self._host.interceptor.violations
        if agents is None:
            await self._host.editor.change(counts.clear)
        else:
            forgiven = [check_id(agent) for agent in ([agents] if isinstance(agents, int | str) else agents)]
            await self._host.editor.change(lambda: [counts.pop(agent, None) for agent in forgiven])

    async def black_set(self) -> set[Pair]:
        """Return the pairs (sender, receiver) of the first black list; an empty set if there is no such rule."""
        return {pair for listed in self._host.black_lists[:1] for pair in listed.pairs}

    add_to_black_set = of_host(lambda host: partial(host.edit_pairs, "add"))
    remove_from_black_set = of_host(lambda host: partial(host.edit_pairs, "remove"))
    set_black_set = of_host(lambda host: partial(host.edit_pairs, "set"))

    # -- state ----------------------------------------------------------------------------------------------------

    async def get_log_list(self) -> list[dict[str, Any]]:
        """Return the latest sends since `clear_log_list`, in the form of AgentSociety's log list."""
        found: list[dict[str, Any]] = await self._log().rows.remote()
        return found

    async def clear_log_list(self) -> None:
        """Empty the log list; the event log keeps everything."""
        await self._log().clear.remote()

    def _log(self) -> Any:  # noqa: ANN401 - a Ray actor handle
        experiment = self._host.experiment
        if experiment.log_dir is None:
            raise ConfigError(no_log(experiment.exp_id))
        return ray.get_actor(experiment.log_name, namespace=NAMESPACE)

    groups = of_host(lambda host: host.groups)
    agents = of_host(lambda host: host.agents)
    hosted = of_host(lambda host: host.hosted)
    moved = of_host(lambda host: host.moved)
    owner_of = of_host(lambda host: host.owner_of)
    move = of_host(lambda host: host.move)
    remove = of_host(lambda host: host.remove)
    audiences = of_host(lambda host: host.audiences)
    set_audience = of_host(lambda host: host.transport.set_audience)
    set_schema = of_host(lambda host: host.transport.set_schema)
    stats = of_host(lambda host: host.stats)

    # -- steps ----------------------------------------------------------------------------------------------------

    step_progress = of_host(lambda host: host.step_progress)
    step_stragglers = of_host(lambda host: host.late_groups)
    wait_steps = of_host(lambda host: host.steps.wait)
    go_on = of_host(lambda host: host.steps.go_on)
    declare_senders = of_host(lambda host: host.steps.declare)
    pause_steps = of_host(lambda host: host.steps.pause)
    resume_steps = of_host(lambda host: host.steps.resume)
    hold_steps = of_host(lambda host: host.hold_steps)
    release_steps = of_host(lambda host: host.release_steps)
    step_state = of_host(lambda host: host.steps.state)
    step_collected = of_host(lambda host: host.steps.collected)
    take_calls = of_host(lambda host: host.call_limits.take)
    note_calls = of_host(lambda host: host.call_limits.note)
    tell_calls = of_host(lambda host: host.tell_calls)
    calls_now = of_host(lambda host: host.calls_now)
    sealed_step = of_host(lambda host: partial(sealed_counts, host.steps))
    history_digest = of_host(lambda host: partial(sealed_history, host.steps))

    # -- seats ----------------------------------------------------------------------------------------------------

    open_seat = of_host(lambda host: host.seats.open)
    seat_tokens = of_host(lambda host: host.seats.tokens)
    wait_for_seat = of_host(lambda host: host.seats.wait_ready)
    ask_seat = of_host(lambda host: host.seats.ask)
    tell_seat = of_host(lambda host: host.seats.tell)
    news_of_seat = of_host(lambda host: host.seats.news)
    answer_of_seat = of_host(lambda host: host.seats.answer)
    set_seat_ready = of_host(lambda host: host.seats.set_ready)
    set_seat_away = of_host(lambda host: host.seats.set_away)
    end_seats = of_host(lambda host: host.seats.end)

    # -- the actor ------------------------------------------------------------------------------------------------

    async def health(self) -> Report:
        """Return a health report, at once and without a call to the server."""
        try:
            host = self._host
        except MessagingError as error:
            return Report(time.time(), error=str(error))
        late = [(str(straggler), straggler.remedy) for straggler in host.late_groups()]
        return Report(time.time(), loops=host.loops(), stats=host.counters(), late=late)

    async def reached(self, addresses: Sequence[Address]) -> list[float | None]:
        """Return for each address how many milliseconds it took to connect, or None if that failed."""
        return await measure(addresses)

    # Groups call this each second while a server cannot be reached. Ray's retries are off, because during a cut of the
    # network more and more calls would be retried.
    @_method(max_task_retries=0)  # type: ignore[untyped-decorator]
    async def lost_server(self) -> str | None:
        """Return an error text that names an embedded server that is lost for good, or None if no server is lost."""
        return None if self._embedded is None else await asyncio.to_thread(lost_server, self._embedded)

    async def _families(self) -> list[Family]:
        try:
            host = self._host
        except MessagingError:
            return []
        return await host.families()

    async def close(self, *, erase: bool) -> None:
        """Stop the interceptor; with `erase`, also delete the experiment's data from the server."""
        if self._metrics is not None:
            await self._metrics.stop(tell=False)
        await self._start.stop()
        if self._newest is not None:  # None: an embedded server was lost before a host could start
            await self._newest.close(erase=erase)


def _call() -> str:
    """Return the id of the running Ray call. If Ray repeats the call, the id is the same."""
    return str(ray.get_runtime_context().get_task_id())
