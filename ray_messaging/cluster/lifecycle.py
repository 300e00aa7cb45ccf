"""Start and end of an experiment: of its actors, and of Ray, if Ray does not run yet."""

import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import ray
from ray.exceptions import ActorUnschedulableError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ray_messaging.addressing.channels import check_name
from ray_messaging.cluster.actors.interceptor_actor import InterceptorActor
from ray_messaging.cluster.actors.redis_server_actor import ServerActor
from ray_messaging.cluster.embedded_servers import (
    PER_NODE,
    KeptData,
    Shards,
    check_shards,
    nodes_of,
    server_names,
)
from ray_messaging.cluster.handles.connection import NAMESPACE, connect, find_actor, named_actors, result, wait_dead
from ray_messaging.cluster.ray_calls import context, get, kill, put, start_actor, wait
from ray_messaging.cluster.ray_clusters import hold_ray, release_ray
from ray_messaging.cluster.ray_internals import ray_session
from ray_messaging.cluster.rule_store import pickled
from ray_messaging.cluster.spec import AudienceHome, Experiment, InterceptorSpec, PickledRule, absolute
from ray_messaging.config import Calls, MessagingConfig, RedisConfig, ServerConfig, Steps, check_calls
from ray_messaging.embedded.machine import CHOICE
from ray_messaging.errors import (
    AlreadyExists,
    Closed,
    ConfigError,
    Fenced,
    MessagingError,
    ServerFailed,
    UnknownName,
)
from ray_messaging.interception.interceptor.rule_set import RuleSet
from ray_messaging.interception.rules import Rule
from ray_messaging.observability.tracing.settings import Tracing, check_tracing
from ray_messaging.transports.backend import experiment_config

logger = logging.getLogger(__name__)

# The longest wait for actors to close cleanly, in seconds.
_CLOSE_S = 10.0
_CALLS_S = 2.0  # seconds to wait for other calls of actors that have been closed
_SERVER_S = 20.0  # seconds to wait for servers to stop; a server's actor kills the server's guard process after 15 s
_LOG_S = 300.0  # seconds to wait until the log has written all rows; the rows of full mailboxes take some seconds
_INLINE_BYTES = 50_000  # Ray passes an argument by value if it has at most twice this many bytes
ACTOR = {"num_cpus": 0, "namespace": NAMESPACE, "max_concurrency": 10_000}


class StartedExperiment:
    """An experiment in the process that started it, with the actors that this process must stop."""

    def __init__(self, session: object) -> None:
        self.experiment: Any = None  # None until `start` has returned
        self.interceptor: Any = None
        self.groups: dict[str, Any] = {}
        self.log: Any = None
        self._servers: list[Any] = []
        self._spec: Any = None
        self._session = session  # the argument for `release_ray`
        self._untouched = False  # whether `close` erases the server's data, which are new and have no messages yet
        self._temporary: str | None = None  # the folder of the audiences' files; None: `close` does not remove it
        self._kept: KeptData | None = None
        self._until_logged = False  # whether the servers' data are deleted when the log has all rows

    def start(self, spec: InterceptorSpec, config: ServerConfig | None, kept: KeptData | None) -> None:
        """Start the actors. If `config`, the user's server, is None, start embedded servers with data in `kept`."""
        self._kept = kept
        self._until_logged = kept is not None and not kept.asked_for and spec.steps is None
        node = context().get_node_id()
        # A later start needs the audiences' files. So their folder is removed at the end only if the log's URI has
        # copies of the files, or if the experiment keeps neither a log nor data on a server.
        copied = spec.log_dir is not None and "://" in spec.log_dir
        if kept is None and spec.audiences is not None and (copied or (config is None and spec.log_dir is None)):
            self._temporary = spec.audiences.folder
        self._start_servers(spec, kept)
        # All calls of the interceptor are idempotent, so Ray is allowed to repeat them.
        options = ACTOR | {"max_restarts": -1, "max_task_retries": -1, "name": spec.interceptor_name}
        # The interceptor runs on the node of this process, like the first embedded server and the log's actor, and ends
        # with the node. The affinity is hard, because Ray ignores a soft one for an actor that asks for no resources.
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
        try:
            # For a restart of the actor, Ray keeps copies of small arguments. A large `spec`, for example with a long
            # black list, is put into Ray's object store, where the reference `self._spec` keeps it.
            large = len(ray.cloudpickle.dumps(spec)) > _INLINE_BYTES
            self._spec = put(spec) if large else spec
            self.interceptor = start_actor(spec.exp_id, InterceptorActor, options, self._spec, config)
        except ValueError as error:
            raise runs_already(spec.exp_id) from error
        for shard, server in enumerate(self._servers):
            try:
                result(server.config.remote(), actor_name=f"the server of experiment {spec.exp_id!r}")
            except (ServerFailed, ConfigError) as error:
                if len(spec.nodes) > 1:
                    error.args = (f"the server of shard {shard}, on Ray node {spec.nodes[shard]}: {error}",)
                raise
        try:
            experiment: Experiment = result(self.interceptor.ready.remote(), actor_name=f"experiment {spec.exp_id!r}")
        except AlreadyExists as error:
            if kept is None or spec.on_existing != "error":
                raise
            remedy = "go on with it by on_existing='resume', delete it by on_existing='reset'"
            text = (
                f"experiment {spec.exp_id!r} has data of an earlier run in {kept.folder}: "
                f"{remedy if spec.fork is None else 'remove that folder'}, or choose another "
                f"{'data_dir' if kept.asked_for else 'log_dir'}"
            )
            raise AlreadyExists(text, kind=error.kind, value=error.value, owner=error.owner) from error
        if experiment.log_dir is not None:
            self._start_log(spec, experiment, kept)
        self.experiment = experiment

    def _start_log(self, spec: InterceptorSpec, experiment: Experiment, kept: KeptData | None) -> None:
        from ray_messaging.cluster.actors.log_actor import LogActor  # noqa: PLC0415 - brings pyarrow, 80 MB
        from ray_messaging.eventlog.folder_records import command_line  # noqa: PLC0415 - as above

        options = ACTOR | {"max_restarts": -1, "max_task_retries": -1, "name": experiment.log_name}
        if "://" not in str(experiment.log_dir):  # a path is valid only on this node, a URI everywhere
            node = context().get_node_id()
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
        actor_name = f"the event log of experiment {spec.exp_id!r}"
        # If the log does not start, the server's data are erased, because nothing was sent yet. With "resume" they are
        # not erased, because they are those of an earlier start.
        self._untouched = spec.on_existing != "resume"
        self.log = start_actor(
            spec.exp_id, LogActor, options, experiment, spec.on_existing if spec.fork is None else "resume"
        )
        result(self.log.ready.remote(), actor_name=actor_name)
        self._untouched = False
        rules = result(self.interceptor.rules.remote(), actor_name=f"experiment {spec.exp_id!r}")
        data = None if kept is None or len(kept.of_servers) > 1 else str(kept.folder)
        result(self.log.note_start.remote(command_line(), rules, data), actor_name=actor_name)

    def _start_servers(self, spec: InterceptorSpec, kept: KeptData | None) -> None:
        folders = kept.of_servers if kept is not None else [None] * len(spec.nodes)
        for node, name, folder in zip(spec.nodes, server_names(spec.exp_id, len(spec.nodes)), folders, strict=False):
            # The server's data are on this node, so the server's actor must stay on it.
            pinned = NodeAffinitySchedulingStrategy(node, soft=False)
            options = {"num_cpus": 0, "namespace": NAMESPACE, "scheduling_strategy": pinned}
            options |= {"max_restarts": -1, "max_task_retries": -1, "name": name}
            arguments = (
                secrets.token_hex(16),
                None if folder is None else str(folder),
                spec.nodes.count(node),
                not self._until_logged,
                spec.log_dir if folder is not None and len(folders) == 1 else None,
                os.environ.get(CHOICE),
            )
            self._servers.append(start_actor(spec.exp_id, ServerActor, options, *arguments))

    def close(self, *, erase: bool) -> None:
        """Stop groups, log, interceptor and servers in this order, and then Ray, if this process needs it no more."""
        try:
            if ray.is_initialized() and ray_session() == self._session:  # if not, the actors have ended with their Ray
                self._stop(erase=erase)
        finally:
            release_ray(self._session)
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _stop(self, *, erase: bool) -> None:
        leave(list(self.groups.values()))
        logged = self.log is not None and finish_log(self.log)
        if self.interceptor is not None:
            over = self._until_logged and logged and self.experiment is not None
            leave([self.interceptor], erase=erase or over or self._untouched)
        erase = erase or self._until_logged  # if the log lacks rows, the server has keys, and does not erase its files
        if self.experiment is not None and (audiences := find_actor(self.experiment.audiences_name)) is not None:
            kill(audiences)  # handles in other processes would keep this actor alive
        attempt([server.stop.remote(erase=erase) for server in self._servers], timeout_s=_SERVER_S)
        _kill(self._servers)
        if erase and self._kept is not None:
            self._kept.clean()
        elif self._kept is not None and self.experiment is not None:
            self._kept.tell()


def start_experiment(
    exp_id: str,
    *,
    server: ServerConfig | str | None,
    rules: Sequence[Rule],
    log_dir: str | Path | None,
    on_existing: str,
    settings: MessagingConfig,
    steps: Steps | None = None,
    data_dir: str | Path | None = None,
    metrics: bool = False,
    tracing: Tracing | None = None,
    shards: Shards = None,
    fork: int | None = None,
    calls: Calls | None = None,
) -> StartedExperiment:
    """Start an experiment, see `Messaging.start`.

    If `fork` is a step, begin with the checkpoint that `log_dir` has after this step.
    """
    check_name("exp_id", exp_id)
    _check_kinds(settings, steps, calls, log_dir=log_dir, data_dir=data_dir)
    if on_existing not in {"error", "resume", "reset"}:
        raise ConfigError(f"on_existing={on_existing!r} is unknown: write 'error', 'resume' or 'reset'")
    check_tracing(tracing)
    config, shards = _checked_servers(server, shards, settings, steps, data_dir)
    started = StartedExperiment(hold_ray())
    try:
        _end_running(exp_id, on_existing)
        pickles, run, log = check_rules(rules), secrets.token_hex(4), absolute(log_dir)
        kept = KeptData.of(data_dir, log_dir=log, shards=shards) if config is None else None
        if fork is None and on_existing == "resume" and log is not None:
            from ray_messaging.eventlog.folder import Folder  # noqa: PLC0415 - brings pyarrow, 80 MB
            from ray_messaging.eventlog.folder_records import unbegun_fork  # noqa: PLC0415 - as above

            fork = unbegun_fork(Folder(log))
        spec = InterceptorSpec(
            exp_id,
            run,
            settings,
            log,
            steps,
            metrics,
            _audience_home(exp_id, run, log, config, kept),
            tracing,
            calls,
            rules=pickles,
            on_existing=on_existing,
            nodes=nodes_of(shards) if config is None else (),
            fork=fork,
            per_node=shards == PER_NODE,
        )
        started.start(spec, config, kept)
        if config is not None:
            from ray_messaging.cluster.health_check import warn_of_data_loss  # noqa: PLC0415 - brings redis-py

            warn_of_data_loss(config)
    except BaseException:
        started.close(erase=False)
        raise
    return started


def _checked_servers(
    server: ServerConfig | str | None, shards: Shards, settings: MessagingConfig, steps: Steps | None, data_dir: object
) -> tuple[ServerConfig | None, Shards]:
    """Return the user's server (None: embedded) and the checked `shards`; raise ConfigError for invalid arguments."""
    config = experiment_config(server)
    if config is None and settings.wait_replicas:
        raise ConfigError(
            f"wait_replicas={settings.wait_replicas} waits for replicas, but the embedded server has no replicas: "
            "pass a server of yours that has replicas: redis=RedisConfig(sentinels=[...], service=...)"
        )
    shards = check_shards(shards, server=config, steps=steps, data_dir=data_dir)
    if isinstance(config, RedisConfig) and shards is not None:
        config = config.model_copy(update={"shards": shards})
    if config is not None and data_dir is not None:
        raise ConfigError(
            f"data_dir={str(data_dir)!r} is for the embedded server, but redis= names a server of yours: leave out "
            "one of them"
        )
    return config, shards


def _check_kinds(settings: object, steps: object, calls: object, **folders: object) -> None:
    """Raise ConfigError if an argument has a wrong type, or if `calls` is given without `steps`."""
    if not isinstance(settings, MessagingConfig):
        raise ConfigError(f"settings={settings!r} is not a MessagingConfig: write settings=MessagingConfig(lease_s=60)")
    if not isinstance(steps, Steps | None):
        raise ConfigError(f"steps={steps!r} is not a Steps object: write steps=Steps(seed=7)")
    check_calls(calls)
    if calls is not None and steps is None:
        raise ConfigError("calls= limits calls through me.remember, which exist only in steps: add steps=Steps()")
    for name, folder in folders.items():
        if not isinstance(folder, str | os.PathLike | None) or folder == "":
            raise ConfigError(f"{name}={folder!r} is not a path: write {name}='a folder'")


def _audience_home(
    exp_id: str, run: str, log_dir: str | None, config: ServerConfig | None, kept: KeptData | None
) -> AudienceHome:
    """Return the node and the folder of the audiences' files.

    The node is the node of this process. The files are in the log's folder. If there is no log, or the log is at a URI,
    the files are beside the data of the embedded servers. If there are no such data either, the files are in a
    temporary folder.

    With a user's own server and no log, the server keeps the experiment's data, and a later start on this node must
    find the audiences' files. So the name of the temporary folder has a hash of the server's settings. In all other
    cases each start has a temporary folder of its own, because copies of the files are at the log's URI, or because the
    experiment keeps no data.
    """
    if log_dir is not None and "://" not in log_dir:
        folder = Path(log_dir, "audiences")
    elif kept is not None:
        folder = kept.folder / "audiences"
    else:
        server = run if config is None or log_dir is not None else f"{crc32(repr(config).encode()):08x}"
        folder = Path(tempfile.gettempdir(), f"ray_messaging-audiences-{os.getuid()}", f"{exp_id}-{server}")
    return AudienceHome(context().get_node_id(), str(folder))


def _end_running(exp_id: str, on_existing: str) -> None:
    """If an experiment of this name runs in this Ray cluster, end it.

    Raises: AlreadyExists if `on_existing` is not "reset", or if the running experiment cannot be reached.
    """
    try:
        running = connect(exp_id)
    except UnknownName:
        return
    # An experiment of the same name was started elsewhere. Since then the server refuses the writes of the actors in
    # this cluster, so these actors can do nothing any more.
    except Fenced:
        for actor in named_actors(f"{exp_id}/").values():
            kill(actor)
        return
    except MessagingError as error:  # the experiment is just ending, or did not start
        raise runs_already(exp_id) from error
    if on_existing != "reset":
        raise runs_already(exp_id)
    experiment = running.experiment
    groups = [find_actor(experiment.group_name(name)) for name in running.ask(running.interceptor.groups.remote())]
    leave([actor for actor in groups if actor is not None])
    if experiment.log_dir is not None:
        finish_log(running.log_actor())
    leave([running.interceptor], erase=True)
    servers = named_actors(f"{exp_id}/server").values()  # the actors of embedded servers
    attempt([server.stop.remote() for server in servers], timeout_s=_SERVER_S)
    _kill(servers)


def leave(
    actors: Sequence[Any],
    calls: Sequence[Any] = (),
    *,
    timeout_s: float = _CLOSE_S,
    **kwargs: Any,  # noqa: ANN401 - a method's arguments
) -> None:
    """Close actors, and then kill them.

    Args: `calls` are calls of these actors whose results are not needed any more. `kwargs` are passed to the method
    `close` of each actor, which has `timeout_s` seconds.
    """
    attempt([actor.close.remote(**kwargs) for actor in actors], timeout_s=timeout_s)
    # The results are read, because otherwise Ray would print the errors of these calls, and say that it repeats the
    # calls, which is not true.
    for ref in wait(list(calls), num_returns=len(calls), timeout=_CALLS_S)[0] if calls else ():
        with suppress(RayError, MessagingError):
            get(ref)
    _kill(actors)


def _kill(actors: Collection[Any]) -> None:
    """Kill actors, and wait until they are dead, so that their names are free for the next experiment."""
    for actor in actors:
        kill(actor)
    for actor in actors:
        wait_dead(actor)


def finish_log(log: Any) -> bool:  # noqa: ANN401 - a Ray actor handle
    """Wait until the event log has written all rows, and kill its actor; return whether all rows are written.

    If rows are missing, an error is logged.
    """
    done, written = log.close.remote(), False
    if not wait([done], timeout=_LOG_S)[0]:
        logger.error(
            "the event log was not complete after %g s, so its last rows are missing: `ray-messaging log finish` "
            "writes them if the server still has them",
            _LOG_S,
        )
    else:
        try:
            result(done, actor_name="the event log")
            written = True
        except MessagingError as error:
            logger.error("the event log is not complete: %s", error)  # noqa: TRY400 - our errors say what is wrong
    kill(log)
    return written


def attempt(refs: Sequence[Any], *, timeout_s: float = _CLOSE_S) -> list[Any]:
    """Wait at most `timeout_s` for calls; log their errors, and return the calls that have succeeded."""
    done = wait(list(refs), num_returns=len(refs), timeout=timeout_s)[0] if refs else []
    good = []
    for ref in done:  # each error is retrieved, because otherwise Ray would print it with a traceback
        try:
            result(ref, actor_name="an actor")
            good.append(ref)
        except (Closed, ActorUnschedulableError) as error:
            logger.info("an actor was closed already, or lost with its node: %s", error)
        except MessagingError as error:
            logger.warning("an actor could not close without an error: %s", error)
        except RayError as error:
            logger.exception("an actor could not close without an error", exc_info=error)
    return good


def runs_already(exp_id: str) -> AlreadyExists:
    """Build the error for starting an experiment that runs already."""
    return AlreadyExists(
        f"experiment {exp_id!r} runs already in this Ray cluster: use Messaging.connect({exp_id!r}), choose another "
        "exp_id, or begin anew by on_existing='reset'",
        kind="experiment",
        value=exp_id,
        owner=None,
    )


def check_rules(rules: Sequence[Rule]) -> tuple[PickledRule, ...]:
    """Return the pickles of rules, for the interceptor; raise RuleError if `rules` is not a list of valid rules."""
    RuleSet(rules)
    return tuple(map(pickled, rules))
