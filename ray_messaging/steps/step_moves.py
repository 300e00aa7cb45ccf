"""The new positions that groups give their agents in one step, and the versions of audiences with these positions."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.directory import Directory
from ray_messaging.audiences.audience_kinds import AudienceKind
from ray_messaging.audiences.building import checked_points
from ray_messaging.audiences.cache import AudienceCache, current_audience
from ray_messaging.audiences.graph_edges import GraphEdges
from ray_messaging.errors import ConfigError, FrameError, InvalidColumns
from ray_messaging.model.columns import IdColumn
from ray_messaging.transports.box_reader import BoxReader
from ray_messaging.transports.step_values import PLACES, box_name
from ray_messaging.transports.transport_values import FrameWrite

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps

_ROWS = 30_000  # a frame has at most this many agents; it then has about 1 MB


class NewPositions(NamedTuple):
    """Agents and their new positions, float64 (n, d). `ids` is ascending, and has each agent once."""

    ids: NDArray[np.int64]
    points: NDArray[np.float64]


class _Frame(msgspec.Struct, array_like=True):
    """New positions in an audience. `ids` and `points` are the bytes of int64 and float64 arrays, little endian."""

    audience: str
    ids: bytes
    points: bytes
    dimensions: int


class StepMoves:
    """The new positions that one group sets in one step. If an agent moves twice, the last position counts."""

    def __init__(self) -> None:
        self._moves: dict[str, list[NewPositions]] = {}

    def __bool__(self) -> bool:
        return bool(self._moves)

    def add(self, audience: str, ids: IdColumn, points: object) -> None:
        """Add new positions; raise InvalidColumns if ids and points do not fit together, or an id is a str."""
        if ids.kinds is not None:
            raise InvalidColumns(
                "agents with positions must have int ids, but some of these ids are strs: leave these agents out"
            )
        checked = checked_points(points, len(ids))
        if len(ids):
            self._moves.setdefault(audience, []).append(NewPositions(ids.values, checked))

    def by_audience(self) -> Mapping[str, NewPositions]:
        """Return the new positions of each audience; raise InvalidColumns if they differ in dimensions."""
        return {name: _merged(name, parts) for name, parts in self._moves.items()}

    def writes(self, step: int) -> Iterator[FrameWrite]:
        """Yield frames with the new positions that a step sets; raise the same errors as `by_audience`."""
        number = 0
        for name, found in self.by_audience().items():
            for low in range(0, len(found.ids), _ROWS):
                number += 1
                ids, points = found.ids[low : low + _ROWS], found.points[low : low + _ROWS]
                frame = _Frame(name, ids.astype("<i8").tobytes(), points.astype("<f8").tobytes(), points.shape[1])
                yield FrameWrite(box_name(PLACES, step + 1), number, len(ids), msgspec.msgpack.encode(frame))


def read_moves(frames: Iterable[bytes]) -> Mapping[str, NewPositions]:
    """Return the new positions of all groups in one step, by audience. The frames may be in any order.

    Raises: FrameError if a frame cannot be decoded.
    """
    found: dict[str, list[NewPositions]] = {}
    for encoded in frames:
        try:
            frame = msgspec.msgpack.decode(encoded, type=_Frame)
            ids, points = np.frombuffer(frame.ids, "<i8"), np.frombuffer(frame.points, "<f8")
            found.setdefault(frame.audience, []).append(NewPositions(ids, points.reshape(len(ids), frame.dimensions)))
        except (msgspec.MsgspecError, ValueError) as error:
            raise FrameError(
                f"the new positions of agents cannot be read ({error}): use one version of ray_messaging in all "
                "processes"
            ) from error
    return {name: _merged(name, parts) for name, parts in sorted(found.items())}


def _merged(name: str, parts: list[NewPositions]) -> NewPositions:
    if len({part.points.shape[1] for part in parts}) > 1:
        raise InvalidColumns(
            f"the new positions in audience {name!r} have different numbers of dimensions in one step, "
            f"{sorted({part.points.shape[1] for part in parts})}: give them as many dimensions as the audience has"
        )
    ids, points = np.concatenate([part.ids for part in parts]), np.concatenate([part.points for part in parts])
    if bool((ids[1:] > ids[:-1]).all()):
        return NewPositions(ids, points)
    distinct, last = np.unique(ids[::-1], return_index=True)
    return NewPositions(distinct, points[::-1][last])


class MovedAudiences:
    """The new positions that all groups set in one step. Each group reads them after all groups have closed the step.

    Each audience with new positions gets one new version for the whole step. The first process that needs the version
    makes it.
    """

    def __init__(self, store: "RedisSteps", audiences: AudienceCache) -> None:
        self._store = store
        self._audiences = audiences

    async def follow(self, step: int, directory: Directory) -> bool:
        """Make new versions of audiences with the positions that agents got in the step before `step`.

        Return whether there are such positions.

        Raises: FrameError if the positions cannot be read; AudienceTooLarge if the new version has too many pairs;
        ConfigError if this process cannot make versions of audiences.
        """
        box = box_name(PLACES, step)
        covers = await self._store.covers(box)
        if not covers:
            return False
        frames = await BoxReader(self._store, box).covered(covers)
        for name, found in read_moves(frame.frame for frame in frames).items():
            if not directory.audiences.moved_with(name, step):
                await self._audiences.move_in_step(name, step, IdColumn(found.ids), found.points)
        return True

    async def check(self, moves: StepMoves, step: int, directory: Directory) -> None:
        """Check that the next step can apply these moves.

        Raises: UnknownName if an audience does not exist, or an agent has no position in an audience; InvalidColumns if
        the dimensions differ; ConfigError if an audience has no positions.
        """
        for name, found in moves.by_audience().items():
            version = directory.audiences.of(name, step)
            edges = await self._audiences.edges(current_audience(directory.audiences, name, step))
            if (
                version.facts.kind is not AudienceKind.POSITIONS
                or not isinstance(edges, GraphEdges)
                or edges.positions is None
            ):
                raise ConfigError(
                    f"audience {name!r} has no positions: make it by create_audience(..., positions=, radius=)"
                )
            edges.positions.moved(IdColumn(found.ids), found.points)
