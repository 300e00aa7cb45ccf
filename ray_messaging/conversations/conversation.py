"""A messager's side of conversations: it asks, and it replies."""

import asyncio
import time
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from ray_messaging.addressing.channels import (
    AGENT_CHAT,
    AgentId,
    agent_channel,
    answer_mailbox,
    check_subtopic,
    payback_channel,
)
from ray_messaging.compat.msg import Payload
from ray_messaging.conversations.answer_mailbox import AnswerMailbox
from ray_messaging.conversations.answers import Answers
from ray_messaging.conversations.lone_questions import LoneQuestions
from ray_messaging.conversations.open_questions import OpenQuestions
from ray_messaging.engine import Engine
from ray_messaging.errors import ConfigError, MessagingError, NoAnswer, NoQuestion, QuestionBlocked
from ray_messaging.message import Message, Messages, Slice, slice_of
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import NONE, PayloadColumn
from ray_messaging.model.extension import Extension
from ray_messaging.receipt import Receipt, Receipts
from ray_messaging.receiving.ack_ranges import Acked, slices_of
from ray_messaging.sending.accumulation.bulk_input import payload_column
from ray_messaging.sending.accumulation.bulk_sender import BulkSender
from ray_messaging.sending.accumulation.conversation_rows import ConversationRows, Questions, Replies
from ray_messaging.sending.accumulation.pending_batch import ColumnBatch, EncodedBatch
from ray_messaging.transports.transport import Transport


class Conversation:
    """The questions of one messager and its replies; its mailbox for answers opens with the first question.

    Args: `open_transport` makes another transport to the same server.
    """

    def __init__(self, engine: Engine, open_transport: Callable[[], Transport]) -> None:
        self._engine = engine
        self._open_transport = open_transport
        self._open = OpenQuestions(from_any=not engine.settings.strict_answers)
        self._mailbox: AnswerMailbox | None = None
        self._opening = asyncio.Lock()
        self.handed_out: list[Slice] = []  # late answers that the last fetch returned

    @property
    def opened(self) -> bool:
        """Tell whether there is a mailbox for answers."""
        return self._mailbox is not None

    # -- life -----------------------------------------------------------------------------------------------------

    async def resume(self) -> None:
        """Take over the mailbox for answers that a predecessor of this name has left, if it has."""
        if self._engine.named and answer_mailbox(self._engine.name) in self._engine.directory.records:
            await self._answers()

    async def _answers(self) -> AnswerMailbox:
        """Return the mailbox for answers, open."""
        async with self._opening:
            if self._mailbox is None:
                engine = self._engine
                engine.sending  # noqa: B018 - raises Closed
                if not engine.transport.acks_apart:
                    raise ConfigError("questions need Redis, Valkey or a MemoryServer: an MQTT broker has none yet")
                name = answer_mailbox(engine.name) if engine.named else None
                own = Engine(self._open_transport(), name=name, settings=engine.settings)
                mailbox = AnswerMailbox(own, self._open, engine.fetcher)
                await mailbox.open()
                self._mailbox = mailbox
        return self._mailbox

    async def close(self, *, commit: bool) -> None:
        """Close the mailbox for answers; commit the late ones that were handed out, if `commit`."""
        if commit:
            await self.commit()
        mailbox, self._mailbox = self._mailbox, None
        if mailbox is not None:
            await mailbox.close()

    def hand_out(self, messages: Messages) -> None:
        """Note the late answers among fetched messages: the next fetch commits them."""
        if self._mailbox is not None:
            self.handed_out += self._mailbox.late_among(messages.slices)

    async def commit(self, messages: Acked | None = None) -> None:
        """Commit the late answers among fetched messages; None: those that were handed out."""
        if self._mailbox is None:
            return
        if messages is None:
            done, self.handed_out = self.handed_out, []
        else:
            done = self._mailbox.late_among(slices_of(messages))
        if done:
            await self._mailbox.commit(done)

    # -- asking ---------------------------------------------------------------------------------------------------

    async def ask(
        self, from_id: AgentId | None, to_id: AgentId, payload: Payload, subtopic: str, timeout: float | None
    ) -> Message:
        """Ask one agent; return its answer. Raises as `Messager.ask`."""
        engine = self._engine
        mailbox = (self._mailbox or await self._answers()).engine.name
        checked = engine.checks.checked(agent_channel(engine.exp_id, to_id, subtopic), payload, from_id, None)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        receipt: Receipt | None = None
        try:
            async with asyncio.timeout(timeout):
                receipt = await engine.sending.ask(checked, Questions(mailbox, self._asked), answer)
                if receipt:
                    return await answer
        except TimeoutError:
            raise _unanswered(to_id, receipt, timeout) from None
        finally:
            answer.cancel()
        raise _not_asked(to_id, receipt, timeout)

    def _asked(self, batch: Batch, futures: "list[asyncio.Future[Message]]") -> None:
        self._open.add(batch, LoneQuestions(self._engine.exp_id, futures))

    async def ask_columns(
        self, from_ids: object, to_ids: object, payloads: object, subtopic: str, timeout: float | None
    ) -> Answers:
        """Ask many agents; return their answers, as they come. Raises as `Messager.ask_columns`."""
        engine = self._engine
        mailbox = (await self._answers()).engine.name
        chunks, topic = engine.checks.columns(from_ids, to_ids, payloads), check_subtopic(subtopic)
        answers = Answers(engine.exp_id, sum(len(chunk.from_ids) for chunk in chunks), timeout)
        batches, place = [], 0
        for chunk in chunks:
            kind = Questions(mailbox, partial(self._asked_columns, answers, place))
            batches.append(
                ColumnBatch(
                    step=engine.step,
                    from_ids=chunk.from_ids,
                    to_ids=chunk.to_ids,
                    topic=topic,
                    lines=chunk.lines,
                    sent_at=time.time(),
                    conversation=ConversationRows(kind),
                )
            )
            place += len(chunk.from_ids)
        answers.sent(await BulkSender(engine.sending).send_batches(batches))
        return answers

    def _asked_columns(self, answers: Answers, place: int, batch: Batch, _: "list[asyncio.Future[Message]]") -> None:
        self._open.add(batch, answers, place)

    # -- replying -------------------------------------------------------------------------------------------------

    async def reply(self, message: Message, payload: Payload) -> Receipt:
        """Answer one question. Raises as `Messager.reply`."""
        engine, (batch, row, *_) = self._engine, slice_of(message)
        _check_questions(batch, [row])
        to_id = message.from_id
        channel = payback_channel(engine.exp_id)
        if to_id is not None:
            channel = agent_channel(engine.exp_id, to_id, message.subtopic or AGENT_CHAT)
        checked = engine.checks.checked(channel, payload, message.to_id, None)
        receipt = await engine.sending.reply(checked, Replies(_asker_of(batch)), message.id)
        _note_replied(batch, [row])
        return receipt

    async def reply_columns(self, messages: Acked, payloads: object) -> Receipts:
        """Answer many questions. Raises as `Messager.reply_columns`."""
        engine, slices = self._engine, slices_of(messages)
        rows = sum(part.high - part.low for part in slices)
        lines = payload_column(payloads, rows, engine.settings.payload_bytes)
        batches, low = [], 0
        for part in slices:
            _check_questions(part.batch, range(part.low, part.high))
            high = low + part.high - part.low
            batches.append(EncodedBatch(step=None, batch=_answers_to(part, lines.take(np.arange(low, high)), engine)))
            low = high
        engine.checks.check_senders(pending.batch.from_ids for pending in batches)
        receipts = await BulkSender(engine.sending).send_batches(batches)
        for part in slices:
            _note_replied(part.batch, range(part.low, part.high))
        return receipts


def _asker_of(batch: Batch) -> str:
    """Return the mailbox that takes the answers to a batch of questions."""
    return "" if batch.extension is None else batch.extension.reply_mailbox


def _answers_to(part: Slice, lines: PayloadColumn, engine: Engine) -> Batch:
    """Build the answers to a slice of questions."""
    batch, rows = part.batch, np.arange(part.low, part.high)
    to_ids, topics, topic = batch.from_ids.take(rows), batch.topics, None if batch.topic is None else batch.topic[rows]
    users = np.zeros(len(rows), np.bool_) if to_ids.kinds is None else to_ids.kinds == NONE
    if users.any():
        topics = (*topics, ":" + payback_channel(engine.exp_id))
        topic = np.zeros(len(rows), np.uint16) if topic is None else topic.copy()
        topic[users] = len(topics) - 1
    return Batch(
        sender="",
        epoch=0,
        first=0,
        from_ids=batch.to_ids.take(rows),
        to_ids=to_ids,
        topics=topics,
        topic=topic,
        step=engine.step,
        sent_at=time.time(),
        lines=lines,
        rows=len(rows),
        extension=Extension(in_reply_to=batch.message_ids(rows), reply_mailbox=_asker_of(batch)),
    )


def _check_questions(batch: Batch, rows: Iterable[int]) -> None:
    """Raise NoQuestion for a message that expects no answer, or has one of this process."""
    expects = None if batch.extension is None else batch.extension.expects_answer
    for row in rows:
        if expects is None or not expects[row]:
            why = f"agent {batch.from_ids[row]!r} expects no answer to it: send an ordinary message"
        elif batch.replied is not None and row in batch.replied:
            why = "it was answered before, and a question has one answer"
        else:
            continue
        question = batch.message_id(row)
        raise NoQuestion(f"message {question} cannot be answered, because {why}", question=question)


def _note_replied(batch: Batch, rows: Iterable[int]) -> None:
    batch.replied = (batch.replied or set()) | set(rows)


def _unanswered(agent: AgentId, receipt: Receipt | None, timeout: float | None) -> NoAnswer:
    if receipt is None:
        question, fate, why = "", "unknown", f"the question to agent {agent!r} was not sent, as far as is known,"
    else:
        question, fate = receipt.message_id, receipt.fate
        why = f"agent {agent!r} gave no answer to {question}"
    return NoAnswer(
        f"{why} within {timeout:g} s: look at its group, or raise `timeout`. A later answer is an ordinary message",
        agent=agent,
        question=question,
        timeout=timeout,
        fate=fate,
    )


def _not_asked(agent: AgentId, receipt: Receipt, timeout: float | None) -> MessagingError:
    if receipt.fate == "blocked":
        return QuestionBlocked(
            f"rule {receipt.rule!r} blocked the question to agent {agent!r}: {receipt.reason}",
            agent=agent,
            question=receipt.message_id,
            rule=receipt.rule,
            reason=receipt.reason,
        )
    return NoAnswer(
        f"the question to agent {agent!r} did not arrive: {receipt.reason}",
        agent=agent,
        question=receipt.message_id,
        timeout=timeout,
        fate=receipt.fate,
    )
