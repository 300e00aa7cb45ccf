"""The part of a messager that asks questions, and replies to them."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ray_messaging.addressing.channels import AgentId, agent_channel, answer_mailbox, check_subtopic
from ray_messaging.compat.msg import Payload
from ray_messaging.conversations.answer_mailbox import AnswerMailbox
from ray_messaging.conversations.answer_stream import Answers
from ray_messaging.conversations.handling import Asker, HandlerFailure, Waits, circle_of, handling_here
from ray_messaging.conversations.open_questions import OpenQuestions
from ray_messaging.conversations.question_watch import QuestionWatch, in_circle
from ray_messaging.conversations.replies import (
    answer_topic,
    asker_of,
    blocked_among,
    cannot_answer,
    check_question,
    naming,
    note_replied,
    replies_to,
    waits_for_failure,
)
from ray_messaging.errors import Closed, MessagingError, NoAnswer, QuestionBlocked
from ray_messaging.message import Message, cause_here
from ray_messaging.messager_engine import Engine
from ray_messaging.messages import Messages, Slice, slice_of
from ray_messaging.model.batch import Batch
from ray_messaging.model.fates import BLOCKED, FATES, NAMES, UNKNOWN
from ray_messaging.receipt import Receipt, Receipts
from ray_messaging.receiving.ack_ranges import Acked, slices_of
from ray_messaging.receiving.call_checks import check_timeout
from ray_messaging.sending.bulk_input import batches_of_columns
from ray_messaging.sending.message_checks import CheckedMessage
from ray_messaging.sending.pending_batch import ConversationRows, PendingBatch, Questions, Replies
from ray_messaging.wire.frames import encode
from ray_messaging.wire.notes import Ask

if TYPE_CHECKING:
    from ray_messaging.transports.transport import RedisTransport

logger = logging.getLogger(__name__)

_UNLIMITED = nullcontext()


class Conversation:
    """The questions and replies of one messager. The first question opens the mailbox for answers.

    Args: `open_transport` makes another transport to the same server.
    """

    def __init__(self, engine: Engine, open_transport: "Callable[[], RedisTransport]") -> None:
        # This is also the name of the messager's service, because a messager has only one service at a time.
        self.name = engine.name
        self._engine = engine
        self._open_transport = open_transport
        self._open = OpenQuestions(engine.exp_id, from_any=not engine.settings.strict_answers)
        self._watch = QuestionWatch(engine, self._open)
        self.waits = Waits(engine)
        self.left: list[Message] = []  # messages that a service has fetched, but not handled
        self._mailbox: AnswerMailbox | None = None
        self.opened = False  # whether there is a mailbox for answers; no property, because each fetch reads it
        self._opening = asyncio.Lock()
        self.handed_out: list[Slice] = []  # late answers that a fetch returned, and that the next fetch commits
        self.keeps_late = True  # if False, a late answer is committed as soon as it is in the inbox

    # -- opening and closing --------------------------------------------------------------------------------------

    async def resume(self) -> None:
        """Open the mailbox for answers that an earlier messager of the same name has left, if there is one."""
        if (
            self._engine.steps is None
            and self._engine.named
            and answer_mailbox(self._engine.name) in self._engine.directory.records
        ):
            await self._answers()

    async def _answers(self) -> AnswerMailbox:
        """Return the mailbox for answers, after opening it if necessary. Raises Closed if the messager is closed."""
        if self._mailbox is None:
            await self._open_mailbox()
        if self._mailbox is None or self._engine.closed:
            raise self._engine.not_open(Closed)
        self._mailbox.check()
        return self._mailbox

    async def _open_mailbox(self) -> None:
        async with self._opening:
            if self._mailbox is None:
                engine = self._engine
                engine.sending.check_loop()
                name = answer_mailbox(engine.name) if engine.named else None
                own = Engine(self._open_transport(), name=name, settings=engine.settings)
                mailbox = AnswerMailbox(own, self._open, engine.fetcher, keeps_late=self.keeps_late)
                try:
                    await mailbox.open()
                except BaseException:
                    await mailbox.close()
                    raise
                if engine.closed:  # the messager was closed while this call waited
                    await mailbox.close()
                    return
                self._mailbox, self.opened = mailbox, True

    async def close(self, *, commit: bool) -> None:
        """Close the mailbox for answers, and end all questions.

        With `commit`, first commit the late answers that `hand_out` has recorded.
        """
        if commit:
            await self.commit()
        mailbox, self._mailbox, self.opened = self._mailbox, None, False
        if mailbox is not None:
            await mailbox.close()
        await self._watch.close()
        await self.waits.close()
        self._open.end()

    def hand_out(self, messages: Messages) -> None:
        """Record which of the messages that a fetch returns are late answers. The next fetch commits them."""
        if self._mailbox is not None:
            self.handed_out += self._mailbox.late_among(messages.slices)

    async def commit(self, messages: Acked | None = None) -> None:
        """Commit the late answers among `messages` (None: the late answers that `hand_out` has recorded)."""
        if self._mailbox is None:
            return
        if messages is None:
            done, self.handed_out = self.handed_out, []
        else:
            done = self._mailbox.late_among(slices_of(messages))
        if done:
            await self._mailbox.commit(done)

    # -- asking questions -----------------------------------------------------------------------------------------

    async def ask(
        self, from_id: AgentId | None, to_id: AgentId, payload: Payload, subtopic: str, timeout: float | None
    ) -> Message:
        """Ask one agent; return the answer. Raises the same errors as `Messager.ask`."""
        check_timeout(timeout)
        engine = self._engine
        checked = engine.checks.checked(agent_channel(engine.exp_id, to_id, subtopic), payload, from_id, None)
        handling = handling_here()
        if handling is None:
            return await self._ask(checked, timeout)
        return await self._ask(checked, timeout, handling.asker(), handling.waits)

    async def ask_batch(self, batch: Batch, timeout: float | None, asker: Asker | None = None) -> Message:
        """Ask the one question in a batch that another process has made. Raises the same errors as `Messager.ask`."""
        self._engine.checks.check_senders([batch.from_ids])
        assert batch.lines is not None
        checked = CheckedMessage(batch.from_ids[0], batch.to_ids[0], batch.topic_of(0), batch.lines.row(0))
        return await self._ask(checked, timeout, asker, self.waits)

    async def _ask(
        self, checked: CheckedMessage, timeout: float | None, asker: Asker | None = None, waits: Waits | None = None
    ) -> Message:
        loop = asyncio.get_running_loop()
        due = None if timeout is None else loop.time() + timeout
        answer: asyncio.Future[Message] = loop.create_future()
        receipt: Receipt | None = None
        try:
            async with _UNLIMITED if self.opened else asyncio.timeout_at(due):
                mailbox = (await self._answers()).engine.name
            if asker is not None:
                await self._check_circle(checked, asker)
            accumulator = self._engine.sending
            async with asyncio.timeout_at(due) if accumulator.crowded else _UNLIMITED:
                await accumulator.enter()
            cause = cause_here() if asker is None else asker.chain[-1].message
            rows, sent = accumulator.append_to(Questions(mailbox, self._open.add_lone), checked, cause)
            if asker is not None:
                rows.behind[len(rows.answers)] = asker.chain
            rows.answers.append(answer)
            # The question is sent during this sleep. The timer is set afterwards, so that the question is sent sooner:
            # setting the timer takes as long as all checks of the question.
            await asyncio.sleep(0)
            async with asyncio.timeout_at(due):
                receipt = await sent
                if receipt:
                    self._watch.begin()
                    if asker is None or waits is None:
                        return await answer
                    mailboxes = self._engine.directory.routing.mailboxes_of(checked.to_id, checked.topic)
                    with waits.waiting(asker, Ask(receipt.message_id, checked.from_id, checked.to_id, mailboxes)):
                        return await answer
        except NoAnswer:  # this clause must come first, because a NoAnswer is also a TimeoutError
            raise
        except TimeoutError:
            raise _unanswered(checked.to_id, receipt, timeout) from None
        finally:
            answer.cancel()
        raise not_asked(checked.to_id, receipt, timeout)

    async def _check_circle(self, checked: CheckedMessage, asker: Asker) -> None:
        """Raise NoAnswer if the answer would have to wait for the handler that asks."""
        engine = self._engine
        if circle_of(asker.chain, checked, engine.directory):
            await engine.frame_sender.refresh()  # the agent may have moved to another mailbox
            circle = [each.agent for each in circle_of(asker.chain, checked, engine.directory)]
            if circle:
                why = in_circle(zip(circle, [*circle[1:], checked.to_id], strict=True))
                text = f"the question to agent {checked.to_id!r} was not sent, because {why}"
                raise NoAnswer(text, agent=checked.to_id, question="", timeout=None, fate=NAMES[UNKNOWN])

    async def ask_columns(
        self, from_ids: object, to_ids: object, payloads: object, subtopic: str, timeout: float | None
    ) -> Answers:
        """Ask many agents; return an object that collects their answers.

        Raises: the same errors as `Messager.ask_columns`.
        """
        check_timeout(timeout)
        engine = self._engine
        chunks = engine.checks.columns(from_ids, to_ids, payloads)
        return await self.ask_batches(batches_of_columns(chunks, check_subtopic(subtopic), engine.step), timeout)

    async def ask_batches(self, batches: Sequence[Batch], timeout: float | None) -> Answers:
        """Ask the questions of batches; return an object that collects their answers.

        Raises: the same errors as `Messager.ask_columns`.
        """
        engine = self._engine
        engine.checks.check_senders(batch.from_ids for batch in batches)
        due = None if timeout is None else asyncio.get_running_loop().time() + timeout
        answers = Answers(engine.exp_id, sum(batch.rows for batch in batches), timeout)
        try:
            async with asyncio.timeout_at(due):
                await self._send_questions(batches, answers)
        except BaseException as error:  # nobody will read the answers, so they become ordinary messages
            answers.end()
            if isinstance(error, TimeoutError) and not isinstance(error, MessagingError):
                raise _unanswered(None, None, timeout) from None
            raise
        self._watch.begin()
        return answers

    async def _send_questions(self, batches: Sequence[Batch], answers: Answers) -> None:
        mailbox = (await self._answers()).engine.name
        pending, place = [], 0
        for batch in batches:
            kind = Questions(mailbox, partial(self._asked_columns, answers, place))
            pending.append(PendingBatch.of(batch, ConversationRows(kind)))
            place += batch.rows
        answers.sent(await self._engine.bulk_sender.send_questions(pending))

    def _asked_columns(self, answers: Answers, place: int, batch: Batch, _: "list[asyncio.Future[Message]]") -> None:
        self._open.add(batch, answers, place)

    # -- replying -------------------------------------------------------------------------------------------------

    async def reply(self, message: Message, payload: Payload, *, failed: bool = False) -> Receipt:
        """Answer one question; with `failed`, report to the asker that the handler has failed.

        Raises: the same errors as `Messager.reply`.
        """
        question = slice_of(message)
        check_question(question)
        batch, row, *_ = question
        checked = self._engine.checks.addressed(
            message.to_id, message.from_id, answer_topic(batch, row, self._engine.exp_id), payload
        )
        try:
            accumulator = self._engine.sending
            await accumulator.enter()
        except Closed as error:
            raise cannot_answer(question, error) from error
        rows, sent = accumulator.append_to(Replies(asker_of(batch), failed), checked)
        rows.in_reply_to.append(batch.message_id(row))
        receipt = await sent
        note_replied([question], () if receipt or receipt.fate != FATES[BLOCKED] else {0})
        return receipt

    # -- serving --------------------------------------------------------------------------------------------------

    async def begin(self) -> Sequence[Message]:
        """Begin to serve. Return the messages that an earlier service of this messager has left unhandled."""
        left, self.left = self.left, []
        self.waits.ended = ""
        await self.waits.write(anew=True)
        return left

    async def serve_by_hand(self) -> None:
        """Remove the server's note that the service has ended, because messages are handled again without a service."""
        self.waits.ended = ""
        await self.waits.write()

    async def end(self, left: Sequence[Message], ended: str) -> None:
        """Stop serving. Keep the unhandled messages for the next service of this messager.

        Args: `ended` says why the service has ended, for the askers that still wait ("": the caller has ended it).
        """
        self.left, self.waits.ended = [*left], ended
        if ended:
            await self.waits.write(anew=True)

    async def keep_failed(self, message: Message, failure: HandlerFailure) -> None:
        """Turn a message into a dead letter, because its handler has failed.

        A message of a plain Redis client is lost, because it was not read from a mailbox.
        """
        batch, row, *_ = slice_of(message)
        if batch.origin is None:
            logger.warning("a message of a plain Redis client is lost: %s", failure.reason)
        else:
            frame = encode(batch.take(np.array([row])))
            origin = batch.origin
            await self._engine.transport.bury(origin.mailbox, origin.entry, frame, failure.reason, row=row)

    async def tell_failed(self, message: Message, failure: HandlerFailure) -> None:
        """Report to a message's asker that the handler has failed. Do nothing if no answer is expected any more."""
        if waits_for_failure(slice_of(message)):
            await self.reply(message, failure.payload, failed=True)

    async def reply_columns(self, messages: Acked, payloads: object) -> Receipts:
        """Answer many questions. Raises the same errors as `Messager.reply_columns`."""
        engine, slices = self._engine, slices_of(messages)
        batches = replies_to(slices, payloads, engine.exp_id, engine.settings.payload_bytes, engine.step)
        engine.checks.check_senders(batch.from_ids for batch in batches)
        with naming(slices):
            receipts = await engine.bulk_sender.relay(batches)
        note_replied(slices, blocked_among(receipts))
        return receipts


def _unanswered(agent: AgentId | None, receipt: Receipt | None, timeout: float | None) -> NoAnswer:
    if receipt is None:
        asked = "questions" if agent is None else f"question to agent {agent!r}"
        question, fate = "", NAMES[UNKNOWN]
        why = f"the server has not confirmed the {asked}"
        remedy = "look in messaging.health() for a full mailbox or a fault of the server"
    else:
        question, fate = receipt.message_id, receipt.fate
        why = f"agent {agent!r} gave no answer to question {question}"
        remedy = "check that the agent's group handles its messages"
    return NoAnswer(
        f"{why} within {timeout:g} s: {remedy}, or raise `timeout`. An answer that comes later arrives as an ordinary "
        "message",
        agent=agent,
        question=question,
        timeout=timeout,
        fate=fate,
    )


def not_asked(agent: AgentId | None, receipt: Receipt, timeout: float | None) -> MessagingError:
    """Build the error for a question that was not delivered, from its receipt."""
    if receipt.fate == FATES[BLOCKED]:
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
