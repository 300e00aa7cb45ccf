"""Role of an embedded server among others, as its configuration says it at each start."""

from typing import Final, Protocol

from ray_messaging.config import RedisConfig


class Role(Protocol):
    """What a server is beside others: their replica, say."""

    arguments: tuple[str, ...]  # of its command line, behind the configuration
    keeps_config: bool  # it keeps what it learns in its configuration, which must be written once only
    may_be_empty: bool  # it may start again without its data: another server has them

    def config(self, usual: str, server: RedisConfig, *, fresh: bool) -> str:
        """Return the configuration for a start of `server`; `usual` is that of one on its own.

        Args: fresh says that it has no data. Raises ServerFailed.
        """

    def started(self) -> None:
        """Note that a start has succeeded."""


class _OnItsOwn:
    """Role of a server that has no others."""

    arguments: tuple[str, ...] = ()
    keeps_config = False
    may_be_empty = False

    def config(self, usual: str, server: RedisConfig, *, fresh: bool) -> str:  # noqa: ARG002 - as the protocol says
        """Return the usual configuration."""
        return usual

    def started(self) -> None:
        """Do nothing."""


ON_ITS_OWN: Final = _OnItsOwn()
