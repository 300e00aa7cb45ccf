"""Records of surveys on a Redis or Valkey server: a hash of all, and a hash of each one's parts."""

from collections.abc import Collection

from ray_messaging.addressing.channels import Keys
from ray_messaging.transports.connection.link import RedisLink


class RedisSurveys:
    """Records of surveys, by id: each a text that never changes, and parts that are added to it, by name."""

    def __init__(self, link: RedisLink, keys: Keys) -> None:
        self._link = link
        self._keys = keys

    async def create(self, survey_id: str, record: bytes) -> bool:
        """Keep a new survey's record; return whether there was none of this id, or this very one."""
        if await self._link.command("HSETNX", self._keys.surveys, survey_id, record):
            return True
        return await self.read(survey_id) == record  # the call was repeated while the connection was cut

    async def read(self, survey_id: str) -> bytes | None:
        """Return a survey's record; None: there is none of this id."""
        found: bytes | None = await self._link.command("HGET", self._keys.surveys, survey_id)
        return found

    async def add(self, survey_id: str, name: str, part: bytes) -> None:
        """Add a part to a survey."""
        await self._link.command("HSET", self._keys.survey(survey_id), name, part)

    async def parts(self, survey_id: str, known: Collection[str]) -> dict[str, bytes]:
        """Return the parts of a survey that are not known, by name."""
        names = await self._link.command("HKEYS", self._keys.survey(survey_id))
        new = [name for name in names if name.decode() not in known]
        found = await self._link.command("HMGET", self._keys.survey(survey_id), *new) if new else []
        return {name.decode(): part for name, part in zip(new, found, strict=True) if part is not None}

    async def ids(self) -> list[str]:
        """Return the ids of all surveys."""
        return sorted(name.decode() for name in await self._link.command("HKEYS", self._keys.surveys))

    async def remove(self, survey_id: str) -> None:
        """Delete a survey's record and its parts."""
        await self._link.command("UNLINK", self._keys.survey(survey_id))
        await self._link.command("HDEL", self._keys.surveys, survey_id)
