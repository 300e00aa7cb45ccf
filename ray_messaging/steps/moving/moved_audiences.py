"""The versions of audiences that the moves of a step make, before the next step begins."""

from ray_messaging.addressing.directory import Directory
from ray_messaging.audiences.graph_edges import GraphEdges
from ray_messaging.audiences.records import Kind
from ray_messaging.audiences.storage.book import AudienceBook, current_audience
from ray_messaging.errors import ConfigError
from ray_messaging.model.columns import IdColumn
from ray_messaging.steps.moving.step_moves import StepMoves, read_moves
from ray_messaging.transports.steps.box_reader import BoxReader
from ray_messaging.transports.steps.store import StepStore
from ray_messaging.transports.steps.values import PLACES, box_name


class MovedAudiences:
    """The moves of the groups in one step, as each group reads them once the step is sealed.

    They are one version of each audience for any number of groups: the first process that needs it makes it.
    """

    def __init__(self, store: StepStore, book: AudienceBook) -> None:
        self._store = store
        self._book = book

    async def follow(self, step: int, directory: Directory) -> bool:
        """See to it that a step has the positions of the step before; return whether some agents have moved.

        Raises: FrameError, AudienceTooLarge, ConfigError without a source that makes versions.
        """
        if not directory.audiences.has_positions():
            return False
        box = box_name(PLACES, step)
        covers = await self._store.covers(box)
        if not covers:
            return False
        frames = await BoxReader(self._store, box).covered(covers)
        for name, found in read_moves(frame.frame for frame in frames).items():
            if not directory.audiences.moved_with(name, step):
                await self._book.move_in_step(name, step, IdColumn(found.ids), found.points)
        return True

    async def check(self, moves: StepMoves, step: int, directory: Directory) -> None:
        """Raise UnknownName, InvalidColumns, ConfigError for moves that the next step could not read."""
        for name, found in moves.by_audience().items():
            version = directory.audiences.of(name, step)
            edges = await self._book.edges(current_audience(directory.audiences, name, step))
            if version.facts.kind is not Kind.POSITIONS or not isinstance(edges, GraphEdges) or edges.positions is None:
                raise ConfigError(f"audience {name!r} has no positions: create_audience(..., positions=, radius=)")
            edges.positions.moved(IdColumn(found.ids), found.points)
