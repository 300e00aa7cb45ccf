"""What an experiment is made of while it lives: its actors, and Ray itself where it did not run yet."""

import logging
import os
import secrets
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ray_messaging.cluster.actors.interceptor_actor import InterceptorActor
from ray_messaging.cluster.actors.server_actor import ServerActor
from ray_messaging.cluster.handles.actor_calls import NAMESPACE, result, wait_dead
from ray_messaging.cluster.rule_store import pickled
from ray_messaging.cluster.spec import Experiment, InterceptorSpec, PickledRule
from ray_messaging.config import ServerConfig
from ray_messaging.errors import AlreadyExists, Closed, ConfigError, MessagingError, RuleError
from ray_messaging.interception.rules import Rule
from ray_messaging.interception.server.rule_set import RuleSet

logger = logging.getLogger(__name__)

# Nobody waits for longer than this for actors to leave cleanly, in seconds.
_CLOSE_S = 10.0
_SERVER_S = 20.0  # a guard that does not come to its end is killed after 15
_LOG_S = 300.0  # what waits in full mailboxes takes some seconds to write
_INLINE_BYTES = 50_000  # half of what Ray passes by value
ACTOR = {"num_cpus": 0, "namespace": NAMESPACE, "max_concurrency": 10_000}


class Owned:
    """What the process that started an experiment must stop."""

    def __init__(self, *, ray_is_ours: bool) -> None:
        self.interceptor: Any = None
        self.groups: dict[str, Any] = {}
        self.log: Any = None
        self._server: Any = None
        self._spec: Any = None
        self._ray_is_ours = ray_is_ours
        self._untouched = False  # nothing is on the server but what this start has put there

    def start(self, spec: InterceptorSpec, config: ServerConfig | None) -> Experiment:
        """Start the server, unless there is one, and the interceptor."""
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        if config is None:
            # Its data are on this node, so it must be, too.
            options = {"num_cpus": 0, "namespace": NAMESPACE, "scheduling_strategy": here}
            options |= {"max_restarts": -1, "max_task_retries": -1, "name": f"{spec.exp_id}/server"}
            self._server = remote(ServerActor, options).remote(secrets.token_hex(16))
        # All of its calls may be repeated.
        options = ACTOR | {"max_restarts": -1, "max_task_retries": -1, "name": f"{spec.exp_id}/interceptor"}
        try:
            # Ray copies small arguments for a restart; of large ones (a long black list) it must find the object.
            large = len(ray.cloudpickle.dumps(spec)) > _INLINE_BYTES
            self._spec = ray.put(spec) if large else spec
            self.interceptor = remote(InterceptorActor, options).remote(self._spec, config)
        except ValueError as error:
            raise runs_already(spec.exp_id) from error
        if self._server is not None:
            result(self._server.config.remote(), what=f"the server of experiment {spec.exp_id!r}")
        experiment: Experiment = result(self.interceptor.ready.remote(), what=f"experiment {spec.exp_id!r}")
        if experiment.log_dir is not None:
            # A path is one of this node; only a URI means the same everywhere.
            options = ACTOR | {"max_restarts": -1, "max_task_retries": -1, "name": experiment.log_name}
            if "://" not in experiment.log_dir:
                options["scheduling_strategy"] = here
            # Until the log is there nothing was sent, and what was there before "reset" has deleted.
            self._untouched = spec.on_existing != "resume"
            from ray_messaging.cluster.actors.log_actor import LogActor  # noqa: PLC0415 - brings pyarrow, 80 MB

            self.log = remote(LogActor, options).remote(experiment, spec.on_existing)
            result(self.log.ready.remote(), what=f"the event log of experiment {spec.exp_id!r}")
            self._untouched = False
        return experiment

    def close(self, *, erase: bool) -> None:
        """Stop groups, interceptor and server in this order, then Ray if we started it."""
        if ray.is_initialized():
            leave(list(self.groups.values()))
            if self.log is not None:
                finish_log(self.log)
            if self.interceptor is not None:
                leave([self.interceptor], erase=erase or self._untouched)
            if self._server is not None:
                _attempt([self._server.stop.remote()], timeout_s=_SERVER_S)
                ray.kill(self._server)
            if self._ray_is_ours:
                ray.shutdown()


def leave(actors: Sequence[Any], **kwargs: Any) -> None:  # noqa: ANN401 - handles, a method's arguments
    """Have actors close cleanly, then end them."""
    _attempt([actor.close.remote(**kwargs) for actor in actors])
    for actor in actors:
        ray.kill(actor)
    for actor in actors:
        wait_dead(actor)


def finish_log(log: Any) -> None:  # noqa: ANN401 - a Ray actor handle
    """Have the event log write all that was sent; say so where it could not."""
    done = log.close.remote()
    if not ray.wait([done], timeout=_LOG_S)[0]:
        logger.error("the event log was not complete after %g s, and was left like that", _LOG_S)
    else:
        try:
            result(done, what="the event log")
        except MessagingError as error:
            logger.error("the event log is not complete: %s", error)  # noqa: TRY400 - ours say what is wrong
    ray.kill(log)


def _attempt(refs: Sequence[Any], *, timeout_s: float = _CLOSE_S) -> None:
    """Wait for calls, though not for ever, and whatever becomes of them: their actors are ended anyway."""
    done = ray.wait(list(refs), num_returns=len(refs), timeout=timeout_s)[0] if refs else []
    for ref in done:  # Ray prints errors that nobody takes, each with its traceback
        try:
            result(ref, what="an actor")
        except Closed as error:
            logger.info("an actor was closed before: %s", error)
        except MessagingError as error:
            logger.warning("an actor could not close well: %s", error)
        except RayError as error:
            logger.exception("an actor could not close well", exc_info=error)


def remote(actor_class: type, options: dict[str, Any]) -> Any:  # noqa: ANN401 - Ray's actor class
    """Make an actor class of ours one of Ray's."""
    return ray.remote(**options)(actor_class)


def ensure_ray() -> bool:
    """Start Ray where it does not run; tell whether that was us."""
    if ray.is_initialized():
        return False
    address = os.environ.get("RAY_ADDRESS") or None
    try:
        ray.init(address=address, include_dashboard=None if address else False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise ConfigError(
            f"cannot join the Ray cluster at RAY_ADDRESS={address!r} ({error}): does it run? Where it asks for a "
            "token, set RAY_AUTH_MODE=token and have the token in ~/.ray/auth_token"
        ) from error
    return True


def end_server(exp_id: str) -> None:
    """End the embedded server of an experiment that somebody else started, if it has one."""
    try:
        server = ray.get_actor(f"{exp_id}/server", namespace=NAMESPACE)
    except ValueError:
        return
    _attempt([server.stop.remote()], timeout_s=_SERVER_S)
    ray.kill(server)


def runs_already(exp_id: str) -> AlreadyExists:
    """Build the error for an experiment that runs."""
    return AlreadyExists(
        f"experiment {exp_id!r} runs already in this Ray cluster: use Messaging.connect({exp_id!r}), choose another "
        "exp_id, or start it afresh by on_existing='reset'",
        kind="experiment",
        value=exp_id,
        owner=None,
    )


def check_rules(rules: Sequence[Rule]) -> tuple[PickledRule, ...]:
    """Return the rules as they cross to the interceptor; raise RuleError."""
    if isinstance(rules, Rule):
        raise RuleError(f"rules must be a list: write rules=[{rules.name}]", rule=rules.name)
    if not isinstance(rules, list | tuple):
        raise RuleError(f"rules must be a list of rules, not {rules!r}", rule=repr(rules))
    RuleSet(rules)  # it finds what is no rule, and names that are there twice
    return tuple(map(pickled, rules))
