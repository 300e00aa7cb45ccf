"""Transactions: fetched messages, sent messages and a state, which are committed together or not at all."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Self

from ray_messaging.addressing import channels as names
from ray_messaging.addressing.channels import AgentId, SenderId
from ray_messaging.compat.msg import Payload
from ray_messaging.errors import ConfigError, Fenced, OutcomeUnknown, TransactionError
from ray_messaging.message import cause_here
from ray_messaging.messager_engine import Engine
from ray_messaging.messages import Messages
from ray_messaging.model.exact import check_state
from ray_messaging.outgoing import Outgoing
from ray_messaging.receipt import Receipts
from ray_messaging.receiving.fetcher import FetchGate
from ray_messaging.sending.accumulator import Accumulator
from ray_messaging.sending.bulk_input import batches_of_columns
from ray_messaging.sending.pending_batch import TransactionBatch
from ray_messaging.transports.transport_values import Conclusion


class Transaction:
    """One consume-process-produce step: an async context manager, made by `messager.transaction()`.

    At the end of the block the server does everything in one call: it commits the fetched messages, writes the sent
    ones, and keeps `state`. After an exception in the block nothing is done, and the fetched messages are delivered
    again. The same holds after a crash, and the process that takes over finds the state of the last transaction.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._batch: TransactionBatch | None = None  # None before and after the `async with` block
        self._gate: FetchGate | None = None
        self._state: bytes | None = None
        self._receipts: Receipts | None = None

    async def __aenter__(self) -> Self:
        if self._batch is not None or self._receipts is not None:
            raise TransactionError("this transaction has begun already: begin a new one by `messager.transaction()`")
        engine = self._engine
        engine.sending  # noqa: B018 - raises Closed
        if not engine.named:
            raise ConfigError(
                "a transaction needs a mailbox that outlives its process: give the messager a name, as in "
                "Messager(config, exp_id, name='bank')"
            )
        self._gate = await engine.fetcher.open_transaction()
        self._state = self._gate.state
        self._batch = TransactionBatch(engine.step)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        batch, self._batch = self._running(), None
        assert self._gate is not None
        if error is not None:
            self._gate.roll_back()
            return
        batch.step = self._engine.step
        batch.conclusion = self._gate.conclusion(self._state, sends=len(batch) > 0)
        if batch.conclusion is None:
            self._gate.commit(None)
            self._receipts = Receipts([])
        else:
            await self._commit(batch, batch.conclusion, self._gate)

    async def _commit(self, batch: TransactionBatch, conclusion: Conclusion, gate: FetchGate) -> None:
        try:
            accumulator = self._engine.sending
            await accumulator.transact(batch)
        except BaseException:  # the accumulator has not accepted the transaction, so it is not sent
            gate.roll_back()
            raise
        try:
            # If this task is cancelled, the commit goes on. The next transaction finds out whether it has succeeded.
            self._receipts = await asyncio.shield(batch.future)
        except (OutcomeUnknown, asyncio.CancelledError):
            gate.resolve_later(conclusion, partial(_committed, accumulator, batch))
            raise
        except BaseException as error:
            gate.roll_back()
            if isinstance(error, Fenced) and self._engine.subscription is not None:
                # The newer process that has taken over the mailbox gets the messages.
                await self._engine.subscription.stop(error)
            raise
        gate.commit(conclusion)

    # -- in the block ---------------------------------------------------------------------------------------------

    async def fetch_messages(
        self, *, limit: int | None = None, timeout: float | None = 0.0, complete: bool = False
    ) -> Messages:
        """Return new messages, at most `limit`; wait up to `timeout` seconds (None: for ever) for the first.

        A transaction can fetch several times. With complete=True a fetch returns all messages that the server
        has at that time.

        Raises: Fenced if a newer process has taken over the mailbox; FetchTooLarge if a fetch with `complete` is above
        its limits; TransactionError if the block has ended.
        """
        self._running()
        return await self._engine.fetcher.fetch_in_transaction(limit, timeout, self._running, complete=complete)

    @property
    def state(self) -> bytes | None:
        """Return the state that was set in this block.

        If the block has set no state, return the state of the last transaction, or None if no transaction has set one.

        Setting the state raises InvalidPayload unless it is bytes or None, PayloadTooLarge if it is above
        MessagingConfig.state_bytes.
        """
        return self._state

    @state.setter
    def state(self, state: bytes | None) -> None:
        self._running()
        self._state = check_state(state, self._engine.settings.state_bytes, "tx.state")

    def send_message(
        self, channel: str, payload: Payload, from_id: SenderId = names.OMITTED, to_id: AgentId | None = None
    ) -> None:
        """Queue one message, which is sent at the end of the block.

        Raises: InvalidAddress for an invalid channel or id; InvalidPayload or PayloadTooLarge for an invalid payload;
        TransactionError outside of the block, or if the transaction has more than 16,384 messages.
        """
        batch = self._running()
        sender, recipient, topic, line = self._engine.checks.checked(channel, payload, from_id, to_id)
        batch.check_room(1, len(line) + 1)
        batch.append(sender, (recipient,), topic, line, cause_here(), time.time())

    def send_messages(self, messages: Sequence[Outgoing]) -> None:
        """Queue many messages, which are sent at the end of the block.

        If one message is invalid, no message is queued. Raises the same errors as `send_message`.
        """
        batch = self._running()
        batch.add(self._engine.checks.batches(messages, None))

    def send_columns(
        self, from_ids: object, to_ids: object, payloads: object, *, subtopic: str = names.AGENT_CHAT
    ) -> None:
        """Queue n messages given as columns, in the form that `Messager.send_columns` accepts.

        Raises: the same errors as `send_message`.
        """
        batch = self._running()
        chunks = self._engine.checks.columns(from_ids, to_ids, payloads)
        batch.add(batches_of_columns(chunks, names.check_subtopic(subtopic), None))

    # -- after the block ------------------------------------------------------------------------------------------

    @property
    def receipts(self) -> Receipts:
        """Return the receipts of the messages, in order; raise TransactionError before the block has committed."""
        if self._receipts is None:
            raise TransactionError(
                "this transaction has no receipts: read them after its `async with` block, once the server has "
                "committed the transaction"
            )
        return self._receipts

    def _running(self) -> TransactionBatch:
        if self._batch is None:
            raise TransactionError("this transaction is not open: use it within `async with ... as tx:`")
        return self._batch

    def __repr__(self) -> str:
        where = "open" if self._batch is not None else "not open" if self._receipts is None else "committed"
        return f"Transaction(name={self._engine.name!r}, {where})"


async def _committed(accumulator: Accumulator, batch: TransactionBatch) -> bool:
    """Return whether the server has committed a transaction.

    After this call no late attempt to commit the transaction can arrive at the server.
    """
    question = TransactionBatch()
    await accumulator.transact(question)
    await asyncio.shield(question.future)
    return batch.number is not None and accumulator.send_loop.transactions >= batch.number
