"""The protocol by which a process gets the pairs of one version of an audience, and its implementation for a folder."""

import asyncio
from pathlib import Path
from typing import Protocol

from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.files import read_edges, version_folder


class AudienceSource(Protocol):
    """A source of the pairs of audiences."""

    async def load(self, name: str, version: int) -> Edges:
        """Return the pairs (sender, hearer) of exactly this version of an audience.

        Raises: UnknownName if the version does not exist, FrameError if it is damaged.
        """


class LocalFolder:
    """Audiences in a folder of this machine. Their files are memory-mapped, so processes share the memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def load(self, name: str, version: int) -> Edges:
        """Return the pairs of a version of an audience.

        Raises UnknownName if the version does not exist, FrameError if its files are damaged.
        """
        return await asyncio.to_thread(self.read, name, version)

    def read(self, name: str, version: int) -> Edges:
        """Return the pairs of a version of an audience. Unlike `load`, read the files in the calling thread."""
        return read_edges(version_folder(self.folder, name, version), name, version)
