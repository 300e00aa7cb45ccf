"""Records of surveys in a MemoryServer."""

from collections.abc import Collection

from ray_messaging.transports.memory.server import Experiment


class MemorySurveys:
    """Records of the surveys of one experiment in a MemoryServer."""

    def __init__(self, exp: Experiment) -> None:
        self._exp = exp

    async def create(self, survey_id: str, record: bytes) -> bool:
        """Keep a new survey's record; return whether there was none of this id, or this very one."""
        return self._exp.surveys.setdefault(survey_id, (record, {}))[0] == record

    async def read(self, survey_id: str) -> bytes | None:
        """Return a survey's record; None: there is none of this id."""
        found = self._exp.surveys.get(survey_id)
        return None if found is None else found[0]

    async def add(self, survey_id: str, name: str, part: bytes) -> None:
        """Add a part to a survey."""
        self._exp.surveys[survey_id][1][name] = part

    async def parts(self, survey_id: str, known: Collection[str]) -> dict[str, bytes]:
        """Return the parts of a survey that are not known, by name."""
        _, parts = self._exp.surveys.get(survey_id, (b"", {}))
        return {name: part for name, part in parts.items() if name not in known}

    async def ids(self) -> list[str]:
        """Return the ids of all surveys."""
        return sorted(self._exp.surveys)

    async def remove(self, survey_id: str) -> None:
        """Delete a survey's record and its parts."""
        self._exp.surveys.pop(survey_id, None)
