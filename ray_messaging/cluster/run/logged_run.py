"""The event log of a local run: the log's host of an experiment, in the process of the run."""

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, cast

from ray_messaging.cluster.actors.log_host import LogHost
from ray_messaging.cluster.rule_store import description
from ray_messaging.cluster.spec import Experiment, absolute
from ray_messaging.config import MessagingConfig, ServerConfig, Steps
from ray_messaging.embedded.local_server import LocalServer
from ray_messaging.errors import ConfigError
from ray_messaging.eventlog.folder_records import command_line
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.interceptor.state_writer import ServerBehindError
from ray_messaging.interception.rules.rule import Rule
from ray_messaging.transports.experiment_store import RedisExperimentStore, StateChanges, StateWrite, other_run


class LogPlan(NamedTuple):
    """The folder of a local run's log, what to do with a log that is there, and the steps between two checkpoints."""

    folder: str
    on_existing: str
    checkpoint: int | None


def log_plan(log_dir: object, on_existing: str, checkpoint: object) -> LogPlan | None:
    """Return the plan of a log, or None if no log is wanted; raise ConfigError for arguments that do not fit."""
    if on_existing == "resume":
        raise ConfigError(
            "on_existing='resume': a local run keeps its server's data in memory only, so it cannot go on after its "
            "process has ended. Go on after its last checkpoint by Messaging.fork(log_dir, ...), or use "
            "Messaging.start(log_dir=...) and messaging.run, which resume"
        )
    if on_existing not in {"error", "reset"}:
        raise ConfigError(f"on_existing={on_existing!r} is unknown: write 'error' or 'reset'")
    if log_dir is None:
        if checkpoint is not None or on_existing != "error":
            raise ConfigError(
                "checkpoint= and on_existing= are about the run's log, and there is no log: pass log_dir='a folder'"
            )
        return None
    if not isinstance(log_dir, str | Path) or log_dir == "":
        raise ConfigError(f"log_dir={log_dir!r} is no path: write log_dir='a folder'")
    if checkpoint is not None and (isinstance(checkpoint, bool) or not isinstance(checkpoint, int) or checkpoint < 1):
        raise ConfigError(f"checkpoint={checkpoint!r} must be the number of steps from one checkpoint to the next")
    return LogPlan(str(absolute(log_dir)), on_existing, checkpoint)


class LoggedRun(NamedTuple):
    """The interceptor of a run with a log, which keeps the state of its rules on the server, and the log's host."""

    interceptor: Interceptor
    log: LogHost


@asynccontextmanager
async def logged_run(
    plan: LogPlan, server: LocalServer, exp_id: str, steps: Steps, rules: Sequence[Rule]
) -> AsyncIterator[LoggedRun]:
    """Claim an experiment on an empty server, as its start on Ray does, and write its log until the context ends.

    Raises: AlreadyExists if the folder has a log, and is not to be reset; LogError if the folder cannot be used.
    """
    run, settings = secrets.token_hex(4), MessagingConfig()
    stores = server.open_backend().stores(exp_id, settings, run=run)
    try:
        await stores.transport.connect()
        await stores.experiment.claim(None, reset=False)
        epoch = await stores.experiment.take_interceptor_epoch()
        interceptor = Interceptor(exp_id, rules, epoch=epoch, store=_StateOnServer(stores.experiment, exp_id))
        try:
            # The server stands for its address here, which only this process needs.
            redis = cast("ServerConfig", server)
            log = LogHost(Experiment(exp_id, run, settings, plan.folder, steps, redis=redis), plan.on_existing)
            await log.start()
            try:
                await log.note_start(command_line(), [description(rule) for rule in rules])
                yield LoggedRun(interceptor, log)
            finally:
                await log.close()
        finally:
            await interceptor.close()
    finally:
        await stores.transport.close()


class _StateOnServer:
    """Store of the rules' state, from which a fork of the run begins."""

    def __init__(self, server: RedisExperimentStore, exp_id: str) -> None:
        self._server = server
        self._exp_id = exp_id
        self._last: StateChanges | None = None

    async def save(self, epoch: int, kept: StateChanges) -> None:
        """Write changes to the server, all or none; raise Fenced or ServerBehindError as `StateStore.save` says."""
        again, self._last = kept is self._last, kept
        written = await self._server.write(epoch, kept, None, again=again)
        if written is StateWrite.FENCED:
            raise other_run(self._exp_id, epoch)
        if written is StateWrite.BEHIND:
            raise ServerBehindError
