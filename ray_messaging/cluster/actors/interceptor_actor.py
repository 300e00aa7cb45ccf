"""Thin Ray shells round plain classes: Ray wraps every method of an actor class, so that hot code lives elsewhere."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import ray
from ray.util import get_node_ip_address

from ray_messaging.addressing.channels import AgentId, check_id
from ray_messaging.cluster.actors.interceptor_host import InterceptorHost
from ray_messaging.cluster.actors.restarts import away, restarted
from ray_messaging.cluster.handles.actor_calls import NAMESPACE
from ray_messaging.cluster.rule_store import description
from ray_messaging.cluster.spec import Experiment, InterceptorSpec, no_log
from ray_messaging.common.backoff import ACTOR_RECONNECT, ACTOR_START_RETRY
from ray_messaging.common.process_tuning import tune_process
from ray_messaging.config import ServerConfig
from ray_messaging.errors import ConfigError, MessagingError
from ray_messaging.interception.rules import BlackList, Rule
from ray_messaging.interception.rules.support.pairs import Pair, check_pairs
from ray_messaging.observability.health.reports import Report

logger = logging.getLogger(__name__)


class InterceptorActor:
    """Give verdicts, and know the experiment: the one actor that everybody finds by its name."""

    # Ray runs an async __init__ on the actor's own loop, at every restart, too.
    async def __init__(  # type: ignore[misc]
        self, spec: InterceptorSpec, redis: ServerConfig | None
    ) -> None:
        # An error here would kill the actor and reach nobody in its own form: whoever asks is told.
        self._failure: MessagingError | None = None
        if redis is None:
            redis = await ray.get_actor(f"{spec.exp_id}/server", namespace=NAMESPACE).config.remote()
        self._trying: asyncio.Task[None] | None = None
        begin = partial(self._begin, spec, redis)
        began = await begin()
        while not began and restarted():
            # The server is away, and may come back: until then nobody could be told more than that.
            await asyncio.sleep(ACTOR_RECONNECT.first_s)
            began = await begin()
        if self._failure is not None and restarted():
            # Messages wait until somebody has set this right (a full memory, too); whoever asks is told meanwhile.
            self._trying = asyncio.create_task(self._try_on(begin), name="ray_messaging interceptor restart")
        tune_process()

    async def _try_on(self, begin: Callable[[], Awaitable[bool]]) -> None:
        while self._failure is not None:
            await asyncio.sleep(ACTOR_START_RETRY.first_s)
            await begin()

    async def _begin(self, spec: InterceptorSpec, redis: ServerConfig) -> bool:
        """Start; keep the reason of a failure for who asks. False: the server is away."""
        host = self._newest = InterceptorHost(spec, redis)
        try:
            await host.start(get_node_ip_address())
        except MessagingError as error:
            failure = error
        except Exception as error:
            logger.exception("the interceptor of %s cannot start", spec.exp_id)
            failure = MessagingError(f"the interceptor cannot start ({type(error).__name__}: {error})")
        else:
            self._failure = None
            return True
        if str(failure) != str(self._failure):
            logger.error("the interceptor of %s judges nothing: %s", spec.exp_id, failure)
        self._failure = failure
        await host.abandon()
        return not away(failure)

    @property
    def _host(self) -> InterceptorHost:
        """Return the host, which judges; raise why there is none: nobody is answered before."""
        why_not = self._failure or self._newest.fenced
        if why_not is not None:
            raise why_not.with_traceback(None)
        return self._newest

    async def ready(self) -> Experiment:
        """Return the experiment once everything runs; raise why it does not."""
        return self._host.experiment

    @ray.method(max_task_retries=0)  # whoever asks does so again, sooner than Ray
    async def lane(self, exp_id: str | None = None) -> tuple[str, int, str]:
        """Return host, port and token of the verdict lane to a messager of our experiment; raises ConfigError.

        Args: exp_id is the messager's; None: on MQTT, where no epoch of ours counts, it need not be of any.
        """
        self._check_ours(exp_id)
        return self._host.lane_address

    def _check_ours(self, exp_id: str | None) -> None:
        """Refuse to judge for others: epochs are small numbers, so that theirs may be the same as ours."""
        ours = self._newest.experiment.exp_id
        if exp_id not in {None, ours}:
            raise ConfigError(
                f"a messager of experiment {exp_id!r} was given the interceptor of experiment {ours!r}: pass it "
                f"Messaging.connect({exp_id!r}).interceptor"
            )

    async def forward(self, from_id: AgentId | None, to_id: AgentId | None, msg: Any) -> bool:  # noqa: ANN401 - the seed's
        """Tell whether a message may pass."""
        return await self._host.interceptor.forward(from_id, to_id, msg)

    async def forward_batch(self, request: bytes, patient: bool, exp_id: str | None = None) -> bytes:  # noqa: FBT001 - by Ray call
        """Answer a request for verdicts: what the lane does, by Ray call."""
        self._check_ours(exp_id)
        answer = self._host.interceptor.answer(request, patient=patient)
        return answer if isinstance(answer, bytes) else await answer

    # -- control: once a change has returned, no later send escapes it --------------------------------------------

    async def rules(self) -> list[dict[str, Any]]:
        """Return a description of each rule, in order; of one that has failed also at what, and how often."""
        failures = self._host.interceptor.failures
        return [description(rule) | failures.of(rule) for rule in self._host.interceptor.rules]

    async def insert_rule(self, rule: Rule, index: int | None = None) -> None:
        """Put a rule before the one at `index` (None: at the end); raises RuleError."""
        await self._host.insert_rule(_call(), rule, index)

    async def replace_rule(self, which: int | str, rule: Rule) -> None:
        """Put a rule in the place of another one, given by place or name; raises RuleError."""
        await self._host.replace_rule(_call(), which, rule)

    async def pop_rule(self, which: int | str = -1) -> dict[str, Any]:
        """Take a rule out, given by place or name, and return its description; raises RuleError."""
        return await self._host.pop_rule(_call(), which)

    async def new_round(self) -> None:
        """Begin a new round: quotas that count by round start again."""
        await self._host.new_round()

    async def violation_counts(self) -> dict[AgentId | None, int]:
        """Return how many messages of each agent were blocked."""
        return dict(self._host.interceptor.violations)

    async def reset_violation_counts(self, agents: Iterable[AgentId] | AgentId | None = None) -> None:
        """Forget how many messages of some agents (None: of all) were blocked; a single id will do."""
        counts = self._host.interceptor.violations
        if agents is None:
            await self._host.change(counts.clear)
        else:
            forgiven = [check_id(agent) for agent in ([agents] if isinstance(agents, int | str) else agents)]
            await self._host.change(lambda: [counts.pop(agent, None) for agent in forgiven])

    async def reset_rule_failures(self, which: int | str | None = None) -> None:
        """Forget what a rule (given by place or name; None: all) failed at, and say it anew; raises RuleError."""
        self._host.reset_failures(which)

    async def black_set(self) -> set[Pair]:
        """Return the blocked pairs."""
        return {pair for listed in self._host.black_lists[:1] for pair in listed.pairs}

    async def add_to_black_set(self, pairs: Iterable[Pair] | Pair) -> None:
        """Block more pairs."""
        wanted = check_pairs(pairs, BlackList.name)
        await self._host.change(lambda: self._host.interceptor.black_list.add(wanted))

    async def remove_from_black_set(self, pairs: Iterable[Pair] | Pair) -> None:
        """Let pairs pass again."""
        wanted = check_pairs(pairs, BlackList.name)
        if self._host.black_lists:  # else there is nothing to be removed, nor a list to be made for it
            await self._host.change(lambda: self._host.interceptor.black_list.remove(wanted))

    async def set_black_set(self, pairs: Iterable[Pair] | Pair) -> None:
        """Replace the blocked pairs."""
        wanted = check_pairs(pairs, BlackList.name)
        await self._host.change(lambda: self._host.interceptor.black_list.set(wanted))

    # -- what is there --------------------------------------------------------------------------------------------

    async def get_log_list(self) -> list[dict[str, Any]]:
        """Return the latest sends of all since `clear_log_list`, in the form of AgentSociety's log list."""
        rows: list[dict[str, Any]] = await self._log().rows.remote()
        return rows

    async def clear_log_list(self) -> None:
        """Begin the list anew; the event log keeps everything."""
        await self._log().clear.remote()

    def _log(self) -> Any:  # noqa: ANN401 - a Ray actor handle
        experiment = self._host.experiment
        if experiment.log_dir is None:
            raise ConfigError(no_log(experiment.exp_id))
        return ray.get_actor(experiment.log_name, namespace=NAMESPACE)

    async def groups(self) -> list[str]:
        """Return the names of the groups."""
        return await self._host.groups()

    async def owner_of(self, agent_id: AgentId) -> str | None:
        """Return the group that hosts an agent."""
        return await self._host.owner_of(agent_id)

    async def remove(self, group: str) -> int:
        """Remove a group's mailbox; what is unread becomes dead letters. Returns their frames."""
        return await self._host.remove(group)

    async def stats(self) -> dict[str, Any]:
        """Return counters, and what waits in each mailbox."""
        return await self._host.stats()

    async def health(self) -> Report:
        """Say how it is doing, at once and without the server."""
        why_not = self._failure or self._newest.fenced
        if why_not is not None:
            return Report(time.time(), error=str(why_not))
        return Report(time.time(), loops=self._newest.loops(), stats=self._newest.counters())

    async def close(self, *, erase: bool) -> None:
        """Stop; `erase` removes the experiment's data from the server."""
        if self._trying is not None:
            self._trying.cancel()
            await asyncio.gather(self._trying, return_exceptions=True)
        await self._newest.close(erase=erase)


def _call() -> str:
    """Name the call under way; one that Ray repeats has the same name."""
    return str(ray.get_runtime_context().get_task_id())
