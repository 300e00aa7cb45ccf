"""The sets of agents in a log's folder: those of a mailbox, whose pairs a broadcast's row stands for."""

import msgspec
import numpy as np

from ray_messaging.errors import LogError
from ray_messaging.eventlog.folder import Folder
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet


class _Stored(msgspec.Struct, array_like=True, frozen=True):
    ints: bytes  # int64, ascending
    strings: tuple[str, ...]


def write_agents(folder: Folder, digest: str, agents: AgentSet) -> None:
    """Write a set of agents under the digest by which rows name it. Raises OSError."""
    stored = _Stored(agents.ints.astype("<i8", copy=False).tobytes(), tuple(sorted(agents.strings)))
    folder.write_small(_file(digest), msgspec.msgpack.encode(stored))


def read_agents(folder: Folder, digest: str) -> AgentSet | None:
    """Return a set of agents; None: the folder does not have it. Raises LogError."""
    data = folder.read_small(_file(digest))
    if not data:
        return None
    try:
        stored = msgspec.msgpack.decode(data, type=_Stored)
        return AgentSet(np.frombuffer(stored.ints, "<i8"), stored.strings)
    except (msgspec.MsgspecError, ValueError) as error:
        path = f"{folder.where}/{_file(digest)}"
        raise LogError(f"the agents of a mailbox in {path} are damaged: {error}", path=path) from error


def all_agents(folder: Folder) -> AgentSet:
    """Return the agents of all sets in a folder. Raises LogError."""
    found = NO_AGENTS
    for digest in folder.agent_sets():
        found |= read_agents(folder, digest) or NO_AGENTS
    return found


def _file(digest: str) -> str:
    return f"_agents-{digest}.bin"
