"""The files of audiences. Each version has a folder with arrays, which are memory-mapped, and their checksums."""

import json
import os
import shutil
from pathlib import Path
from threading import Lock
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from ray_messaging.audiences.building import Positions
from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.graph_edges import Adjacency, GraphEdges
from ray_messaging.audiences.member_edges import MemberEdges
from ray_messaging.errors import FrameError, UnknownName
from ray_messaging.model.agent_sets import AgentSet

try:
    from isal.isal_zlib import crc32
except ImportError:  # isal does not exist for all machines; the standard library computes the same checksum
    from zlib import crc32

FACTS = "audience.json"  # this file is written last
# Numpy parses the header of a file with `ast`, which some releases of Python cannot do in two threads at once.
_HEADERS = Lock()
_GRAPH = ("senders", "out_lengths", "heard", "hearers", "into_lengths", "said")


def version_folder(folder: Path, name: str, version: int) -> Path:
    """Return the folder of a version of an audience."""
    # With the version in it, the folder's name is safe even if the audience is named "..".
    return folder / f"{name}@{version}"


def write_edges(folder: Path, edges: Edges) -> None:
    """Write the files of a version of an audience, which appear all together.

    They replace files of the same version that were written before the experiment was reset.
    """
    made = folder.with_name(f".{folder.name}.{uuid4().hex}")
    made.mkdir(parents=True)
    try:
        strings: list[str] = []
        positions = edges.positions if isinstance(edges, GraphEdges) else None
        if isinstance(edges, MemberEdges):
            strings = sorted(edges.members.strings)
            arrays: dict[str, NDArray[np.generic]] = {"members": edges.members.ints}
        else:
            out, into = edges.all, edges.into
            columns = (out.ids, out.lengths, out.others, into.ids, into.lengths, into.others)
            arrays = dict(zip(_GRAPH, columns if into is not out else columns[:3], strict=False))
            if positions is not None:
                arrays |= {"agents": positions.ids, "points": positions.points}
        facts = {
            "digest": edges.digest.hex(),
            "strings": strings,
            "positions": [] if positions is None else [positions.radius, positions.limit],
            "checksums": {name: crc32(array.data) for name, array in arrays.items()},
        }
        for name, array in arrays.items():
            _write(made / f"{name}.npy", array)
        with (made / FACTS).open("w") as file:
            json.dump(facts, file)
            file.flush()
            os.fsync(file.fileno())
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def _write(path: Path, array: NDArray[np.generic]) -> None:
    with path.open("wb") as file:
        np.save(file, array)
        file.flush()
        os.fsync(file.fileno())


def read_edges(folder: Path, name: str, version: int) -> Edges:
    """Memory-map the files of a version of an audience.

    Raises UnknownName if there are no files, FrameError if they are damaged.
    """
    try:
        facts = json.loads((folder / FACTS).read_text())
        arrays = {each: _read(folder / f"{each}.npy", checksum) for each, checksum in facts["checksums"].items()}
        digest = bytes.fromhex(facts["digest"])
        if "members" in arrays:
            return MemberEdges(AgentSet(arrays["members"], facts["strings"]), digest)
        out = into = Adjacency.of(*(arrays[each] for each in _GRAPH[:3]))
        if _GRAPH[3] in arrays:
            into = Adjacency.of(*(arrays[each] for each in _GRAPH[3:]))
        positions = None
        if facts["positions"]:
            positions = Positions(arrays["agents"], arrays["points"], *facts["positions"])
    except FileNotFoundError as error:
        raise UnknownName(
            f"version {version} of audience {name!r} has no files in {folder}, because the audience was removed, or "
            "its files were written to another folder: copy the files, or make the audience again by "
            "messaging.create_audience",
            kind="audience",
            value=name,
        ) from error
    except (ValueError, KeyError, TypeError, EOFError) as error:
        damage = (
            f"the files of audience {name!r}, version {version}, in {folder} are damaged ({error}): restore them, or "
            "make the audience again by messaging.create_audience"
        )
        raise FrameError(damage) from error
    return GraphEdges(out, into, digest, positions=positions)


def _read(path: Path, checksum: int) -> NDArray[Any]:
    with _HEADERS:
        array: NDArray[Any] = np.load(path, mmap_mode="r")
    if crc32(array.data) != checksum:
        raise ValueError(f"{path.name} does not have the checksum with which it was written")
    return np.asarray(array)
