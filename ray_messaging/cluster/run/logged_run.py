"""A local run with an event log, and a server whose data are kept. The run's own process writes the log."""

import secrets
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import NamedTuple, cast

from ray_messaging.addressing.directory import Directory
from ray_messaging.cluster.actors.interceptor_host import begin_steps
from ray_messaging.cluster.actors.log_host import LogHost, check_no_log
from ray_messaging.cluster.embedded_servers import KeptData, beside
from ray_messaging.cluster.rule_store import description
from ray_messaging.cluster.run.log_plan import EXPERIMENT, LogPlan
from ray_messaging.cluster.run.run import check_same
from ray_messaging.cluster.run.run_plan import GroupPlan
from ray_messaging.cluster.spec import Experiment
from ray_messaging.config import MessagingConfig, ServerConfig, Steps
from ray_messaging.embedded.local_server import LocalServer
from ray_messaging.errors import AlreadyExists, UnknownName
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.folder_records import command_line
from ray_messaging.interception.interceptor.interceptor import OWN_TABLES, Interceptor
from ray_messaging.interception.interceptor.state_writer import ServerBehindError
from ray_messaging.interception.rules.black_list import BlackList
from ray_messaging.interception.rules.rule import Rule, forces_all
from ray_messaging.transports.experiment_store import (
    ExperimentClaim,
    RedisExperimentStore,
    StateChanges,
    StateWrite,
    other_run,
)
from ray_messaging.transports.step_values import CHECKPOINT, CTRL_C, SUPERVISOR
from ray_messaging.transports.transport import RedisTransport


class LoggedRun(NamedTuple):
    """The interceptor of a run, which applies the run's rules, and the object that writes the run's log.

    The interceptor stores the state of its rules on the server. `step` is the first step that has not run, and `moved`
    has the names of the groups that agents have left or joined.
    """

    interceptor: Interceptor
    log: LogHost
    step: int
    moved: Collection[str]


@asynccontextmanager
async def logged_run(
    plan: LogPlan, server: LocalServer, exp_id: str, steps: Steps, rules: Sequence[Rule], groups: Sequence[GroupPlan]
) -> AsyncIterator[LoggedRun]:
    """Claim an experiment on a server, as `Messaging.start` does; yield its interceptor and the writer of its log.

    Both are closed when the context ends.

    Raises: AlreadyExists if the folder already has a log or the server already has the experiment, and the plan says
    neither "resume" nor "reset"; LogError if the folder cannot be used; ConfigError if the resumed run had other
    settings, such as another seed, or other groups or agents.
    """
    run, settings = secrets.token_hex(4), MessagingConfig()
    reset = plan.on_existing == "reset"
    stores = server.open_backend().stores(exp_id, settings, run=run, reset=reset)
    try:
        await stores.transport.connect()
        await _claim(stores.experiment, plan)
        epoch = await stores.experiment.take_interceptor_epoch()
        step, moved = await _take_steps(stores.transport, exp_id, steps, groups, supervised=forces_all(rules))
        interceptor = await _interceptor(stores.experiment, exp_id, rules, epoch)
        try:
            # `redis` is usually the address at which other processes reach the server. No other process uses this
            # server, so the server's object takes the place of the address.
            redis = cast("ServerConfig", server)
            log = LogHost(Experiment(exp_id, run, settings, plan.folder, steps, redis=redis), plan.on_existing)
            await log.start()
            try:
                data = None if server.data_dir is None else str(server.data_dir)
                await log.note_start(command_line(), [description(rule) for rule in rules], data)
                yield LoggedRun(interceptor, log, step, moved)
            finally:
                await log.close()
        finally:
            await interceptor.close()
    finally:
        await stores.transport.close()


@contextmanager
def kept_server(plan: LogPlan, steps: Steps) -> Iterator[LocalServer]:
    """Start a server for a run with a log, and end it with the context.

    As for `Messaging.start`, the server's data are kept in a folder beside the log.

    Raises: AlreadyExists if the log's folder has a log, and the plan says neither "resume" nor "reset"; LogError if the
    log's folder cannot be used; ConfigError if another process uses the folder of the data.
    """
    # The log's folder is checked before a server starts, so that an error leaves no folder with a server's data.
    log, data = Folder(plan.folder), KeptData.of(None, log_dir=plan.folder, shards=None)
    log.prepare(EXPERIMENT, any_schema=plan.on_existing == "reset")
    if plan.on_existing == "error":
        check_no_log(log)
    with LocalServer(steps, data_dir=None if data is None else data.folder) as server:
        yield server
    if data is not None:
        data.tell()


async def _claim(experiment: RedisExperimentStore, plan: LogPlan) -> None:
    holder = await experiment.holder()
    if holder is not None and plan.on_existing == "error":
        data = beside(plan.folder)
        raise AlreadyExists(
            f"{data} has the data of an earlier run: go on with it by on_existing='resume', delete it by "
            "on_existing='reset', or choose another log_dir",
            kind="experiment",
            value=data,
            owner=None,
        )
    if await experiment.claim(holder, reset=plan.on_existing == "reset") is ExperimentClaim.ERASE:
        await experiment.erase_earlier()


async def _take_steps(
    transport: RedisTransport, exp_id: str, steps: Steps, groups: Sequence[GroupPlan], *, supervised: bool
) -> tuple[int, Collection[str]]:
    """Prepare the steps on the server, for a run that begins or is resumed.

    Args: `supervised` is True if there are rules for whole steps. Each step then ends only after these rules.
    Returns: the first step that has not run, and the names of the groups that agents have left or joined.
    Raises: ConfigError if the resumed run has other settings, groups or agents than before.
    """
    store, directory = transport.steps, Directory(exp_id)
    await begin_steps(store, exp_id, steps)
    # An earlier process may have paused the steps, or left holds, which keep steps from beginning. It left the hold
    # CTRL_C if it was interrupted, or if its budget of model calls was spent. It left the hold CHECKPOINT if it died
    # before it had written a checkpoint.
    await store.resume()
    await store.drop_hold(CTRL_C)
    await store.drop_hold(CHECKPOINT)
    if not supervised:
        with suppress(UnknownName):  # raised if no earlier process of the run had rules for whole steps
            await store.leave(SUPERVISOR, at_once=True)
    progress = await store.progress()
    directory.update(*await transport.load_directory(-1))
    records = directory.records
    hosted = {
        name: records[name].agents()
        for name, group in progress.groups.items()
        if group.until is None and name in records
    }
    moved = {name for name, record in records.items() if record.moved}
    check_same(groups, hosted, begun=progress.latest >= 0, moved=moved)
    return progress.sealed + 1, moved


async def _interceptor(server: RedisExperimentStore, exp_id: str, rules: Sequence[Rule], epoch: int) -> Interceptor:
    """Return the interceptor of a run. Its rules have the values that they stored in an earlier process of the run."""
    black_list = BlackList()
    # If the user passes no BlackList, the run still has a default one, to which rules may have added pairs of agents in
    # an earlier process.
    added = [] if any(rule.name == black_list.name for rule in rules) else [black_list]
    names = [*OWN_TABLES, *(rule.name for rule in [*added, *rules] if rule.state is not None)]
    tables, answers = await server.read_tables(names)
    rules = [*(rule for rule in added if tables[rule.name]), *rules]
    interceptor = Interceptor(exp_id, rules, epoch=epoch, store=_StateOnServer(server, exp_id))
    interceptor.load(tables, answers, merge=True)
    interceptor.forget_calls()
    return interceptor


class _StateOnServer:
    """Writer of the rules' state to the server, where checkpoints and processes that resume the run read the state."""

    def __init__(self, server: RedisExperimentStore, exp_id: str) -> None:
        self._server = server
        self._exp_id = exp_id
        self._last: StateChanges | None = None

    async def save(self, epoch: int, kept: StateChanges) -> None:
        """Write changes to the server, either all of them or none; raises the same errors as `StateStore.save`."""
        again, self._last = kept is self._last, kept
        written = await self._server.write(epoch, kept, None, again=again)
        if written is StateWrite.FENCED:
            raise other_run(self._exp_id, epoch)
        if written is StateWrite.BEHIND:
            raise ServerBehindError
