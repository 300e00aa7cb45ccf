"""Completion of the event log of a run whose driver was killed, from the data that the embedded server still has.

The server's guard, the process that starts and stops the server, runs this file after the driver's death. The command
`ray-messaging log finish` calls `finish`.
"""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

from ray_messaging.cluster.actors.log_host import LogHost
from ray_messaging.cluster.embedded_servers import beside
from ray_messaging.cluster.spec import Experiment
from ray_messaging.config import MessagingConfig, RedisConfig
from ray_messaging.embedded.data_directory import APPEND_ONLY_NAME
from ray_messaging.embedded.redis_server import EmbeddedServer
from ray_messaging.errors import LogError, MessagingError
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.folder_records import RunRecord, read_run, unended
from ray_messaging.transports.backend import backend_of

HOST = "127.0.0.1"


def finish(log_dir: str) -> bool:
    """Write the rows that are missing in a log whose run was killed; return False if no rows are missing.

    Afterwards the server's data are deleted, with two exceptions. Data in a `data_dir` that a user has passed are kept.
    The data of an experiment with steps are kept, too, because a later start can resume the run with them.

    Raises: LogError if the server's data are not on this machine; ConfigError while the run's server still runs.
    """
    folder = Folder(log_dir)
    record, lacking = read_run(folder), unended(folder)
    if record is None or lacking is None:
        return False
    data = record.starts[-1].data
    if data is None or not Path(data, APPEND_ONLY_NAME).exists():
        empty = (
            f"the data of the run's server, with the rows of its last messages, are missing in {data}: put them back"
        )
        why = empty if data is not None and Path(data).exists() else lacking
        raise LogError(f"the log cannot be completed on this machine: {why}", path=folder.where)
    passing = record.steps is None and data == beside(folder.where)
    with EmbeddedServer(HOST, data_dir=data, brief=True) as server:
        asyncio.run(_write(folder, record, server.start(), erase=passing))
        server.stop(erase=passing)
    return True


async def _write(folder: Folder, record: RunRecord, server: RedisConfig, *, erase: bool) -> None:
    """Write the missing rows and end the log, as a successor of the log's actor in the same run."""
    run, settings = record.starts[-1].run, MessagingConfig()
    host = LogHost(Experiment(record.experiment, run, settings, folder.where, redis=server), "resume")
    try:
        await host.start()
    except BaseException:
        await host.abandon()
        raise
    await host.close(killed=True)
    if erase:
        stores = backend_of(server).stores(record.experiment, settings, run=run)
        await stores.transport.connect()
        await stores.experiment.erase()
        await stores.transport.close()


if __name__ == "__main__":
    with suppress(MessagingError):  # the folder records which rows are missing
        finish(sys.argv[1])
