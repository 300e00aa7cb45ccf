"""Messages that a handle of a group has fetched."""

from contextlib import suppress
from typing import TYPE_CHECKING, Self

from ray.exceptions import RayError

from ray_messaging.common.awaitables import finish
from ray_messaging.errors import ConfigError, MessagingError
from ray_messaging.messages import Messages
from ray_messaging.receiving.delivery_leases import Token

if TYPE_CHECKING:
    from ray_messaging.cluster.handles.group.async_group import AsyncGroup


class Fetched(Messages):
    """Fetched messages. A `with` block over them commits them at its end, or returns them to the mailbox on an error.

    Messages of `group.aio` need `async with`. The end of the block raises CommitFailed if the block took longer than
    `MessagingConfig.loan_s` and another handle has the messages now.
    """

    __slots__ = ("_lender", "_token")

    def __init__(self, messages: Messages, lender: "AsyncGroup", token: Token | None) -> None:
        super().__init__(messages.exp_id, messages.slices, messages.more)
        self._lender, self._token = lender, token
        for part in self.slices:
            if part.batch.origin is not None:
                part.batch.origin = part.batch.origin._replace(loan=token)

    def __enter__(self) -> Self:
        if not self._lender.waiting.blocks:
            raise ConfigError("messages that `group.aio` fetched need `async with`: their commit waits in the loop")
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        finish(self._end(error))

    async def __aenter__(self) -> Self:
        if self._lender.waiting.blocks:
            raise ConfigError("messages that a Group fetched need `with`; `group.aio.fetch_messages` is for async code")
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        await self._end(error)

    async def _end(self, error: BaseException | None) -> None:
        if self._token is None:
            return
        if error is None:
            await self._lender.commit_lease(self._token)
        else:
            with suppress(MessagingError, RayError):  # the block's error is raised
                await self._lender.give_up_lease(self._token)
