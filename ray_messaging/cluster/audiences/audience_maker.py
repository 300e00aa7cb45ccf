"""Makes the versions of audiences on the node with their files."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from ray.exceptions import RayActorError, RayTaskError

from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.records import AudienceFacts, Audiences, Kind, encode_facts
from ray_messaging.audiences.storage.files import read_edges, version_folder, write_edges
from ray_messaging.audiences.storage.source import LocalFolder
from ray_messaging.cluster.handles.actor_calls import translated
from ray_messaging.errors import AlreadyExists, ConfigError


class Change(Protocol):
    """A change of an audience."""

    def applied(self, edges: Edges) -> Edges | None:
        """Return the pairs of the next version, None where the audience goes; raise ConfigError for another kind."""


class AudienceMaker:
    """Maker of versions: it writes their files, then has the interceptor put them into the directory.

    A lock in the folder makes the changes of several processes follow one another.
    """

    def __init__(self, folder: Path, interceptor: Any) -> None:  # noqa: ANN401 - a Ray actor handle
        self.source = LocalFolder(folder)
        self._folder = folder
        self._interceptor = interceptor

    @contextmanager
    def _alone(self) -> Iterator[Audiences]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield self._ask(self._interceptor.audiences.remote())

    def create(self, name: str, kind: str, edges: Edges) -> None:
        """Create an audience; raise AlreadyExists."""
        with self._alone() as audiences:
            if name in audiences.names():
                raise AlreadyExists(
                    f"audience {name!r} exists already: messaging.audience({name!r}) returns it",
                    kind="audience",
                    value=name,
                )
            self._publish(name, audiences.last_version(name) + 1, Kind(kind), edges)

    def change(self, name: str, change: Change) -> None:
        """Make another version of an audience; raise UnknownName, ConfigError where it is of another kind."""
        with self._alone() as audiences:
            last = audiences.of(name)
            old = read_edges(version_folder(self._folder, name, last.version), name, last.version)
            edges = change.applied(old)
            if edges is None or edges.digest.hex() != last.facts.digest:
                self._publish(name, last.version + 1, last.facts.kind, edges)

    def move_in_step(self, name: str, step: int, change: Change) -> None:
        """Make the version that counts from a step on, unless another process has."""
        with self._alone() as audiences:
            if audiences.moved_with(name, step):
                return
            last = audiences.of(name, step)
            edges = change.applied(read_edges(version_folder(self._folder, name, last.version), name, last.version))
            self._publish(name, audiences.last_version(name) + 1, last.facts.kind, edges, step)

    def _publish(self, name: str, version: int, kind: Kind, edges: Edges | None, since: int | None = None) -> None:
        facts = ""
        if edges is not None:
            write_edges(version_folder(self._folder, name, version), edges)
            moved = -1 if since is None else since - 1
            facts = encode_facts(AudienceFacts(kind, edges.pairs, edges.digest.hex(), moved))
        if self._ask(self._interceptor.set_audience.remote(name, version, facts, since)) is None:
            raise ConfigError(
                f"audience {name!r} has a version that was not made here: does another cluster use this experiment?"
            )

    def _ask(self, ref: Any) -> Any:  # noqa: ANN401 - an ObjectRef and its value
        try:
            return ref.future().result()  # ray.get would warn, in a thread of an async actor, of a blocked event loop
        except (RayTaskError, RayActorError) as error:
            raise translated(error, actor_name="the interceptor") from error
