"""Port to the records of an experiment's surveys; their answers are in mailboxes."""

from collections.abc import Collection
from typing import Protocol


class SurveyStore(Protocol):
    """Records of surveys, by id: each a text that never changes, and parts that are added to it, by name."""

    async def create(self, survey_id: str, record: bytes) -> bool:
        """Keep a new survey's record; return whether there was none of this id, or this very one."""

    async def read(self, survey_id: str) -> bytes | None:
        """Return a survey's record; None: there is none of this id."""

    async def add(self, survey_id: str, name: str, part: bytes) -> None:
        """Add a part to a survey."""

    async def parts(self, survey_id: str, known: Collection[str]) -> dict[str, bytes]:
        """Return the parts of a survey that are not known, by name."""

    async def ids(self) -> list[str]:
        """Return the ids of all surveys."""

    async def remove(self, survey_id: str) -> None:
        """Delete a survey's record and its parts."""
