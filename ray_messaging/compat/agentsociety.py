"""AgentSociety 1.5's Messager on an experiment, whose rules judge the messages of a round, and whose log has them."""

from typing import Final

from ray_messaging.addressing.channels import all_agents
from ray_messaging.compat.versions import needs, warn_unless_tested
from ray_messaging.embedded.local_server import LocalServer
from ray_messaging.messager import Messager as OurMessager
from ray_messaging.outgoing import Outgoing

TESTED: Final = "1.5"

with needs("AgentSociety 1.5", f"agentsociety=={TESTED}.7"):
    from agentsociety.message import Message  # type: ignore[import-not-found,unused-ignore]
    from agentsociety.message import Messager as TheirMessager


class Messager(TheirMessager):  # type: ignore[misc,unused-ignore]  # without AgentSociety, mypy knows no class
    """AgentSociety's Messager, but the messages of a round go through a mailbox on a server.

    Args: `config` is the address of a server, such as `messaging.redis`, on which the mailbox outlives this process.
    None: this process starts a server, which ends with this process.
    `interceptor` is `messaging.interceptor`, whose rules judge each message after AgentSociety's own interceptor.
    """

    def __init__(
        self, exp_id: str, config: object = None, *, interceptor: object = None, name: str = "received"
    ) -> None:
        warn_unless_tested("agentsociety", TESTED, "messager")
        super().__init__(exp_id)
        self._message_interceptor = None  # the base class sets this only in set_message_interceptor
        self._engine = OurMessager(LocalServer() if config is None else config, exp_id, interceptor, name=name)

    async def _open(self) -> OurMessager:
        await self._engine.init()
        if not self._engine.engine.fetcher.listens:
            await self._engine.subscribe_and_start_listening([all_agents(self.exp_id), self.get_user_payback_channel()])
        return self._engine

    async def set_received_messages(self, messages: list[Message]) -> None:
        """Send the messages of a round. Return when each message is stored, or blocked by a rule.

        Messages of an earlier round that were not fetched stay in the mailbox. All messages are checked before the
        first one is sent.

        Raises: the same errors as `Messager.send_messages`.
        """
        engine = await self._open()
        await engine.send_messages([self._outgoing(message) for message in messages])

    def _outgoing(self, message: Message) -> Outgoing:
        payload = message.model_dump(mode="json")
        if message.to_id is None:
            return Outgoing(self.get_user_payback_channel(), payload, message.from_id)
        return Outgoing.to_agent(message.to_id, payload, message.from_id, subtopic=message.kind.value)

    async def fetch_received_messages(self) -> list[Message]:
        """Return all messages that were sent but not fetched yet, in order.

        The next fetch commits these messages. If this process dies before that, its successor on the same
        server gets them again.
        """
        engine = await self._open()
        return [Message(**message.payload) for message in await engine.fetch_messages(complete=True)]

    async def close(self) -> None:
        """Commit what was fetched, and disconnect."""
        await self._engine.close()
