"""Health check of a running experiment. It asks the server and the actors, and ends within 5 s even if they hang."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError

from ray_messaging.cluster.handles.connection import find_actor, named_actors
from ray_messaging.cluster.ray_calls import check_ray, get, wait
from ray_messaging.cluster.ray_internals import actor_facts, on_ray_client, owner_known_dead
from ray_messaging.cluster.reachability import place_groups, reached_nodes
from ray_messaging.cluster.spec import Experiment
from ray_messaging.config import MessagingConfig, ServerConfig, ShardsConfig
from ray_messaging.errors import MessagingError, ended
from ray_messaging.observability.health.actor_checks import check_actors
from ray_messaging.observability.health.findings import SERVER_ACTOR, ActorFacts, Finding, Health, critical
from ray_messaging.observability.health.mailbox_checks import check_kept
from ray_messaging.observability.health.node_checks import NodeFacts, check_nodes
from ray_messaging.observability.health.redis_checks import check_server
from ray_messaging.observability.metrics.experiment_metrics import ExperimentReport
from ray_messaging.transports.backend import backend_of
from ray_messaging.transports.server_facts import Kept, ServerFacts
from ray_messaging.transports.step_values import Progress

logger = logging.getLogger(__name__)

T = TypeVar("T")

DEADLINE_S = 5.0
_TASK_S = 10.0  # how many seconds a Ray task may take to start
_REASON = 300  # at most this many characters of an error of Ray are shown
_UNKNOWN = critical(
    "server",
    "not examined, because the interceptor did not give its address",
    "fix what the finding about the interceptor says, or name the server: ray-messaging doctor EXP_ID --redis URL",
)

_NO_HEAD = critical(
    "Ray",
    "its head node does not answer, so only actors that this process knows were asked",
    "check that Ray's head node runs, and its process gcs_server. Running actors go on, but Ray cannot restart "
    "actors that die",
)

_NO_TASK = critical(
    "Ray",
    "this driver is on Ray Client, so a task examined the experiment; the task failed or did not answer in time",
    "check the cluster (`ray status`), or run ray-messaging doctor EXP_ID on one of its nodes",
)


def check_health(exp_id: str, experiment: Experiment | None, handles: Mapping[str, Any]) -> Health:
    """Return the findings about an experiment within 5 s. On Ray Client it takes longer, because a Ray task must start.

    Args:
        exp_id: The experiment's name.
        experiment: The facts of the experiment. If they are None, or lack the password, the experiment's actors are
            asked for them.
        handles: Known actors, by their Ray names.
    """
    found = ask_experiment(exp_id, experiment, handles)
    return Health(f"experiment {exp_id!r}", [_NO_TASK] if found is None else found.findings)


def ask_experiment(exp_id: str, experiment: Experiment | None, handles: Mapping[str, Any]) -> ExperimentReport | None:
    """Return a report on an experiment: facts about its servers and actors, and the findings of `check_health`.

    The arguments are those of `check_health`. On Ray Client a Ray task makes the report; return None if this task fails
    or gives no answer in time.
    """
    check_ray(exp_id)
    if on_ray_client():
        return _ask_on_cluster(exp_id, experiment, handles)
    deadline = time.monotonic() + DEADLINE_S
    known = experiment

    def probe() -> ServerFacts | None:
        nonlocal known
        if known is None or known.withheld:
            known = _find_experiment(exp_id) or known
        return _facts_of(known, exp_id)

    probing = _soon(probe)
    prefix = f"{exp_id}/"
    named = _named_in_time(prefix)
    interceptor = f"{prefix}interceptor"
    ours, there = handles.get(interceptor), (named or {}).get(interceptor)
    if ours is not None and there is not None and there != ours:  # another experiment, started later, has this name
        raise ended(exp_id)
    actors = {interceptor: None} | dict(handles) | (named or {})
    reaching = _soon(partial(_nodes_of, prefix, actors)) if named is not None else None
    progress = _progress_of(actors[interceptor], known)
    found = ask_actors(prefix, actors, deadline, look_up=named is not None)
    nodes = [] if reaching is None else _in_time(reaching, deadline, [])
    try:
        facts = probing.result(max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        late = f"the server gave no answer within {DEADLINE_S:g} s"
        facts = None if known is None else ServerFacts(known.redis.server, error=late)
    embedded = f"{prefix}server" in actors
    allow_eviction = facts is not None and facts.allow_eviction
    waited = 0 if known is None else known.settings.wait_replicas
    findings = [_UNKNOWN]
    if facts is not None:
        findings = check_servers(facts, allow_eviction=allow_eviction, embedded=embedded, wait_replicas=waited)
    findings += [_NO_HEAD] if named is None else []
    if facts is not None and facts.kept is not None and any(node.unreached_by for node in nodes):
        owners = {mailbox.name: mailbox.owner for mailbox in facts.kept.mailboxes if mailbox.hosts and mailbox.owner}
        place_groups(nodes, owners, deadline)
    findings += check_nodes(nodes, _silent_groups(progress))
    _place_actors(found, nodes)
    findings += check_actors(found)
    if named is not None and known is not None and known.log_dir is not None and known.log_name not in actors:
        remedy = f"sent messages wait on the server: start {exp_id!r} again by on_existing='resume'"
        findings.append(critical("log", "its actor is dead", remedy))
    if facts is not None and facts.kept is not None:
        findings += check_kept(facts.kept, [] if named is None else _dead_owners(facts.kept, deadline))
    return ExperimentReport(found, facts, findings)


def _nodes_of(prefix: str, actors: Mapping[str, Any]) -> list[NodeFacts]:
    """Return facts about the nodes: whether this process, the interceptor and the servers can connect to them."""
    kinds = (f"{prefix}interceptor", f"{prefix}server")
    askers = {_shown(name.removeprefix(prefix)): actors[name] for name in kinds if actors.get(name) is not None}
    return reached_nodes(askers, DEADLINE_S / 2)


def _progress_of(interceptor: Any, experiment: Experiment | None) -> Any:  # noqa: ANN401 - a Ray actor handle, an ObjectRef
    """Begin to ask for the progress of the steps; return the call's ObjectRef.

    Return None if the experiment has no steps, or if the interceptor or the experiment's settings are unknown.
    """
    if interceptor is None or experiment is None or not experiment.steps:
        return None
    return interceptor.step_progress.remote()


def _silent_groups(progress: Any) -> dict[str, float]:  # noqa: ANN401 - an ObjectRef
    """Return the groups for which a step waits, and whose driver is cut off, with the seconds since its last call.

    The driver of a group is the task that takes the group through its steps.
    """
    if progress is None or not wait([progress], timeout=0)[0]:
        return {}
    try:
        found: Progress = get(progress)
    except (RayError, MessagingError) as error:
        logger.debug("cannot read how far the steps are: %s", error)  # findings on the interceptor give the cause
        return {}
    waiting = {} if found.resting else found.waiting_for()
    groups = {name: found.groups[name] for name in waiting if name in found.groups}
    return {name: group.silent_ms / 1000 for name, group in groups.items() if group.cut_off}


def _in_time(future: "Future[T]", deadline: float, otherwise: T) -> T:
    try:
        return future.result(max(0.0, deadline - time.monotonic()))
    except Exception as error:  # noqa: BLE001 - of any kind, as Ray's head may be gone
        logger.debug("Ray does not list its nodes: %r", error)  # other findings give the cause
        return otherwise


def _place_actors(actors: Sequence[ActorFacts], nodes: Sequence[NodeFacts]) -> None:
    """Add, to the facts of each actor that gave no answer, the actor's node, and who cannot connect to that node."""
    by_id = {node.node: node for node in nodes}
    for facts in actors:
        node = by_id.get(facts.node)
        if facts.report is None and node is not None:
            facts.where, facts.cut_off_from = node.where, ", ".join(node.unreached_by)


def check_servers(
    facts: ServerFacts, *, allow_eviction: bool, embedded: bool = False, wait_replicas: int = 0
) -> list[Finding]:
    """Return the findings about the servers of an experiment.

    If there are several servers, each finding names its server.
    """
    found: list[Finding] = []
    for shard, each in enumerate([facts, *facts.others]):
        some = check_server(each, allow_eviction=allow_eviction, embedded=embedded, wait_replicas=wait_replicas)
        found += [replace(one, what=f"shard {shard}: {one.what}") for one in some] if facts.others else some
    return found


def _ask_on_cluster(exp_id: str, experiment: Experiment | None, handles: Mapping[str, Any]) -> ExperimentReport | None:
    """Run `ask_experiment` in a Ray task; return None if that fails.

    A driver on Ray Client may be unable to connect to the server itself.
    """
    # The password is left out, because Ray keeps the arguments of tasks.
    known = None if experiment is None else experiment.without_password()
    asking = ray.remote(num_cpus=0, max_retries=0)(ask_experiment).remote(exp_id, known, dict(handles))
    try:
        found: ExperimentReport | None = get(asking, timeout=DEADLINE_S + _TASK_S)
    except RayError as error:
        logger.debug("the task that examines %s failed: %s", exp_id, error)  # the finding _NO_TASK tells the user
        return None
    return found


def warn_of_data_loss(config: ServerConfig) -> None:
    """Log a warning if a server is configured so that it may lose the experiment's data."""
    facts = backend_of(config).probe()
    if facts.error:
        logger.warning("cannot check how the server stores its data: %s", facts.error)
        return
    for finding in check_server(facts, allow_eviction=facts.allow_eviction):
        if finding.what in {"server persistence", "server eviction"} and finding.level != "ok":
            logger.warning("%s at %s: %s; %s", finding.what, facts.where, finding.value, finding.remedy)


def _dead_owners(kept: Kept, deadline: float) -> list[str]:
    """Return those owners of mailboxes that are dead according to Ray.

    Owners that cannot be checked before the deadline are left out, and so are owners of mailboxes without a lease.
    """
    owners = {mailbox.owner for mailbox in kept.mailboxes if mailbox.owner and mailbox.lease_s is not None}
    return [owner for owner in sorted(owners) if time.monotonic() < deadline and _is_dead(owner)]


def _is_dead(owner: str) -> bool:
    return owner_known_dead(owner.rpartition("/")[2])


def _soon(call: Callable[[], T]) -> "Future[T]":
    """Begin a call in a separate thread; return its future.

    The caller can stop waiting for the future. The calls themselves, to Ray or for DNS lookups, have no timeout.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001 - whoever waits gets it
            future.set_exception(error)

    threading.Thread(target=run, name="ray_messaging health", daemon=True).start()
    return future


def _facts_of(experiment: Experiment | None, exp_id: str) -> ServerFacts | None:
    """Return facts about the experiment's server, or None if its address or its password is unknown."""
    if experiment is None or experiment.withheld:
        return None
    try:
        return backend_of(experiment.redis).probe(exp_id)
    except Exception as error:  # noqa: BLE001 - the error becomes a finding
        return ServerFacts(experiment.redis.server, error=f"asking failed ({type(error).__name__}: {error})")


def _find_experiment(exp_id: str) -> Experiment | None:
    """Ask an experiment's interceptor, or else its embedded servers, for the experiment's facts with the passwords.

    Return None if neither the interceptor nor the first server answers.
    """
    experiment: Experiment | None = _call(f"{exp_id}/interceptor", "ready")
    if experiment is not None:
        return experiment
    first = _call(f"{exp_id}/server", "config")
    if first is None:
        return None
    servers = (first, *(server for name in _further_servers(exp_id) if (server := _call(name, "config")) is not None))
    config = ShardsConfig(servers=servers) if len(servers) > 1 else servers[0]
    return Experiment(exp_id, "", MessagingConfig(), redis=config)


def _further_servers(exp_id: str) -> list[str]:
    """Return the names of the actors of all embedded servers except the first one, in order."""
    prefix = f"{exp_id}/server-"
    found = [name for name in _named_in_time(prefix) or () if name.removeprefix(prefix).isdecimal()]
    return sorted(found, key=lambda name: int(name.removeprefix(prefix)))


def _call(name: str, method: str) -> Any:  # noqa: ANN401 - the method's result
    """Return the result of an actor's method, or None if there is no such actor, or it fails or is too slow."""
    try:
        actor = find_actor(name)
        return None if actor is None else get(getattr(actor, method).remote(), timeout=DEADLINE_S / 3)
    except Exception as error:  # noqa: BLE001 - of any kind, as Ray's head may be gone
        logger.debug("%s does not return the server's address: %s", name, error)  # a finding tells the user
        return None


def _named_in_time(prefix: str) -> dict[str, Any] | None:
    """Return the living actors whose names begin with `prefix`, or None if Ray's head gives no answer in time."""
    try:
        return _soon(partial(named_actors, prefix)).result(DEADLINE_S / 2)
    except Exception as error:  # noqa: BLE001 - of any kind, as Ray's head may be gone
        logger.debug("Ray does not list its actors: %r", error)  # the finding _NO_HEAD tells the user
        return None


def ask_actors(prefix: str, actors: Mapping[str, Any], deadline: float, *, look_up: bool = True) -> list[ActorFacts]:
    """Ask actors for their health; return the facts about each actor, even if it does not answer.

    With `look_up`, Ray is asked for the state, the number of restarts and the node of each actor.
    """
    asked = {
        name: ActorFacts(_shown(name.removeprefix(prefix)))
        for name in sorted(actors, key=lambda name: ("/group/" in name, name))
    }
    began = time.time()
    pending = {}
    for name, facts in asked.items():
        if actors[name] is None:
            facts.state, facts.why = "DEAD", "the actor does not exist"
        else:
            pending[actors[name].health.remote()] = facts
    while pending:
        done, _ = wait(list(pending), timeout=max(0.0, deadline - time.monotonic()))
        if not done:
            break
        _take(pending.pop(done[0]), done[0], began)
    for facts in pending.values():
        facts.why = f"no answer within {DEADLINE_S:g} s"
    for name, facts in asked.items():
        if look_up and actors[name] is not None:
            facts.state, facts.restarts, facts.node = actor_facts(actors[name])
    return list(asked.values())


def _take(facts: ActorFacts, ref: Any, began: float) -> None:  # noqa: ANN401 - an ObjectRef
    ended = time.time()
    try:
        facts.report = get(ref)
    except RayError as error:
        facts.why = (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()[:_REASON]
    else:
        assert facts.report is not None
        facts.skew_s = facts.report.now - (began + ended) / 2
        facts.margin_s = (ended - began) / 2


def _shown(name: str) -> str:
    kind, _, group = name.partition("/")
    if kind == "server" or kind.startswith("server-"):
        shard = kind.removeprefix("server").removeprefix("-")
        of_shard = f" of shard {shard}" if shard else ""
        return f"{SERVER_ACTOR}{of_shard}{f' ({group})' if group else ''}"
    return f"group {group!r}" if group else kind
