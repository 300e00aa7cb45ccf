"""The event log of a local run, which is written in the process of the run."""

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, cast

from ray_messaging.cluster.actors.log_host import LogHost
from ray_messaging.cluster.rule_store import description
from ray_messaging.cluster.run.log_plan import LogPlan
from ray_messaging.cluster.spec import Experiment
from ray_messaging.config import MessagingConfig, ServerConfig, Steps
from ray_messaging.embedded.local_server import LocalServer
from ray_messaging.eventlog.folder_records import command_line
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.interceptor.state_writer import ServerBehindError
from ray_messaging.interception.rules.rule import Rule
from ray_messaging.transports.experiment_store import RedisExperimentStore, StateChanges, StateWrite, other_run


class LoggedRun(NamedTuple):
    """The interceptor of a run with a log, which stores the state of its rules on the server, and the log's host."""

    interceptor: Interceptor
    log: LogHost


@asynccontextmanager
async def logged_run(
    plan: LogPlan, server: LocalServer, exp_id: str, steps: Steps, rules: Sequence[Rule]
) -> AsyncIterator[LoggedRun]:
    """Claim an experiment on an empty server, as `Messaging.start` does, and write its log until the context ends.

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
            # The server object takes the place of the server's address, which only this process needs.
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
    """Store of the rules' state on the server, so that checkpoints, and thus forks, have the state."""

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
