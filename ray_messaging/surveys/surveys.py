"""The surveys of an experiment, for async code: how surveys are created, ask agents, count answers, and end."""

import asyncio
import logging
import math
import secrets
import time
from collections.abc import Collection

import numpy as np

from ray_messaging.addressing.channels import check_name, check_subtopic, survey_mailbox
from ray_messaging.default_limits_and_leases import BATCH_ROWS
from ray_messaging.errors import AlreadyExists, Closed, ConfigError, FrameError, UnknownName
from ray_messaging.messager_engine import Engine
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet
from ray_messaging.model.columns import IdColumn, PayloadColumn, encode_payload
from ray_messaging.receiving.call_checks import check_timeout
from ray_messaging.receiving.subscription_spec import SubscriptionSpec
from ray_messaging.sending.bulk_input import ColumnChunk, batches_of_columns
from ray_messaging.sending.pending_batch import ConversationRows, PendingBatch, Questions
from ray_messaging.surveys.answer_model import AnswerModel
from ray_messaging.surveys.record import END, Asking, SurveyRecord, decode_asking, decode_record, encode
from ray_messaging.surveys.tally import Rows, Tally
from ray_messaging.transports.cursors import START, Cursor, order
from ray_messaging.transports.transport_values import Conclusion, Limits, Listening
from ray_messaging.wire.frames import decode

logger = logging.getLogger(__name__)

# The most bytes of one read. The limit is low, because the server does nothing else while it copies the bytes.
_READ_BYTES = 2 * 2**20
_FRAMES = 32


class AsyncSurvey:
    """A survey of an experiment.

    The survey's mailbox keeps all answers: they are read, but never acknowledged, which would delete them.

    Several processes may open a survey at the same time. Each of them reads the mailbox from its beginning.
    """

    def __init__(self, surveys: "Surveys", survey_id: str, record: SurveyRecord, model: AnswerModel) -> None:
        self.id = survey_id
        self.record = record
        self.model = model
        self._surveys, self._engine, self._store = surveys, surveys.engine, surveys.store
        due = None if record.timeout is None else record.created_at + record.timeout
        # The time until which to wait for answers if no question was sent yet.
        self._first_end = _end_of(due, record.timeout)
        self._begin()

    def _begin(self) -> None:
        self.tally = Tally(self.record.agents, self.model)
        self._last: str | None = None  # the last mailbox entry whose answers count; None: the survey has not ended
        self._known: set[str] = set()  # the names of the survey's stored parts that were read: its questions, its end
        # For each batch of questions, the time, by the monotonic clock, until which to wait for answers.
        self._ends: list[float] = []
        self._read_to = START.entry
        self._frame_bytes = 1

    # -- reading --------------------------------------------------------------------------------------------------

    async def update(self, block_s: float = 0.0) -> None:
        """Count the answers that have come since the last call.

        If there are none, wait up to `block_s` for the first one.
        """
        async with self._surveys.reading:
            await self._update(block_s)

    async def _update(self, block_s: float) -> None:
        parts = await self._store.parts(self.id, self._known)
        if END in parts and order(parts[END].decode()) < order(self._read_to):
            self._begin()  # answers from after the end were counted, so counting begins again
            parts = await self._store.parts(self.id, self._known)
        self._known.update(parts)
        if END in parts:
            self._last = parts.pop(END).decode()
        for name, part in parts.items():
            asking = decode_asking(part)
            ends = self._surveys.ends.setdefault(self.id, {})
            if name not in ends:
                ends[name] = _end_of(asking.due, asking.timeout)
            self._ends.append(ends[name])
            self.tally.add_asking(asking)
        if self.ended:
            self._surveys.ends.pop(self.id, None)
        while await self._read(block_s):
            block_s = 0.0

    async def _read(self, block_s: float) -> bool:
        """Read and count some answers; return whether there may be more."""
        count = max(1, min(_FRAMES, _READ_BYTES // self._frame_bytes))
        frames = await self._engine.transport.read(self.record.mailbox, self._read_to, count, block_s)
        for entry, frame in frames:
            self._count(entry, frame)
            self._read_to = entry
            self._frame_bytes = max(self._frame_bytes, len(frame))
        return len(frames) == count

    def _count(self, entry: str, frame: bytes) -> None:
        try:
            batch = decode(frame)
        except FrameError as error:
            logger.warning("entry %s of survey %s holds no answers: %s", entry, self.id, error)
            return
        if self._last is not None and order(entry) > order(self._last):
            self.tally.late += batch.rows
        elif batch.lines is not None:
            self.tally.add(batch)

    async def more(self, block_s: float) -> bool:
        """Wait up to `block_s` for the next answers; return whether further answers can still come in time."""
        before = self._read_to
        await self.update()
        async with self._surveys.reading:
            # If `_read_to` has changed, another call has counted answers meanwhile.
            if self._read_to == before and self.waits:
                left = self.seconds_left
                await self._update(block_s if left is None else min(block_s, left))
        return self.waits

    @property
    def ended(self) -> bool:
        """Return whether the survey has ended. Answers that come after the end are not counted."""
        return self._last is not None

    @property
    def waits(self) -> bool:
        """Return whether further answers can still come in time."""
        return not self.ended and self.seconds_left != 0 and not self.tally.done

    @property
    def seconds_left(self) -> float | None:
        """Return for how many more seconds to wait for answers; None: there is no limit."""
        end = max(self._ends, default=self._first_end)
        return None if end == math.inf else max(0.0, end - time.monotonic())

    # -- asking ---------------------------------------------------------------------------------------------------

    async def ask(self, places: Rows, timeout: float | None) -> None:
        """Ask the agents at the positions `places` among the survey's agents, a few thousand at a time.

        The record of each such batch of questions is stored before the next batch is sent.
        """
        await open_mailbox(self._engine, self.record.mailbox, 2 * (self.tally.questions + len(places)))
        due, end = None if timeout is None else time.time() + timeout, _end_of(None, timeout)
        for low in range(0, len(places), BATCH_ROWS):
            part = places[low : low + BATCH_ROWS]
            batch = self._questions(part)
            receipts = await self._engine.bulk_sender.send_questions([batch])
            name = secrets.token_hex(8)
            self._surveys.ends.setdefault(self.id, {})[name] = end
            await self._store.add(self.id, name, encode(Asking.of(part, receipts, due, timeout)))

    def _questions(self, places: Rows) -> PendingBatch:
        lines = PayloadColumn.of([self.record.question], np.zeros(len(places), np.uint32))
        agents = self.tally.agents.column.take(places)
        chunk = ColumnChunk(IdColumn.constant(None, len(places)), agents, lines)
        return questions(self._engine, self.record.mailbox, chunk, self.record.subtopic)

    async def remind(self, timeout: float | None) -> int:
        """Ask the agents without a fitting answer again; return how many agents were asked.

        Raises: Closed if the survey has ended, UnknownName if it was removed.
        """
        check_timeout(timeout, positive=True)
        await self._surveys.record(self.id)
        await self.update()
        if self.ended:
            raise Closed(
                f"survey {self.id!r} has ended, and can ask no more agents: create another survey by "
                "messaging.create_survey(...)"
            )
        places = self.tally.open_places
        if len(places):
            await self.ask(places, self.record.timeout if timeout is None else timeout)
        return len(places)

    async def end(self) -> None:
        """End the survey. Answers that have come by now count, later answers do not."""
        await self.update()
        if not self.ended:
            await self._store.add(self.id, END, self._read_to.encode())
            await self.update()


def _end_of(due: float | None, timeout: float | None) -> float:
    """Return the time until which this process waits for answers.

    The time is by the monotonic clock, because the system's clock may be changed.

    Args: `due` is the end of the wait in unix seconds, by the clock of the process that asked the question. That clock
    may be wrong, so the returned time is at most `timeout` seconds from now.
    """
    if timeout is None:
        left = math.inf if due is None else due - time.time()
    else:
        left = timeout if due is None else min(timeout, due - time.time())
    return time.monotonic() + left


async def open_mailbox(engine: Engine, mailbox: str, messages: int) -> Listening:
    """Create the mailbox for a survey's answers, if it does not exist, and return the server's answer.

    No messager owns the mailbox, so every process may read it. It can hold at least `messages` answers.
    """
    settings, transport = engine.settings, engine.transport
    record = SubscriptionSpec(engine.exp_id).record(mailbox, settings)
    limits = Limits(max(settings.mailbox_messages, messages), settings.mailbox_bytes, settings.lease_s, leased=False)
    while True:
        delta = await transport.load_directory(engine.directory.version)
        listening = await transport.listen(record, delta.version, limits, owner="", epoch=None)
        if isinstance(listening, Listening):
            return listening


def questions(engine: Engine, mailbox: str, chunk: ColumnChunk, subtopic: str) -> PendingBatch:
    """Return a batch of questions made from columns. The answers go to `mailbox`."""
    [batch] = batches_of_columns([chunk], subtopic, engine.step)
    kind = Questions(mailbox, lambda *_: None)
    return PendingBatch.of(batch, ConversationRows(kind))


class Surveys:
    """The surveys of an experiment. Questions are sent by `engine`, in the name of the user."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.store = engine.transport.surveys
        # For each survey that has not ended, and for each of its records of questions, the time until which this
        # process waits for answers.
        self.ends: dict[str, dict[str, float]] = {}
        self.reading = asyncio.Lock()  # shared by all surveys, because the transport reads one mailbox at a time

    async def record(self, survey_id: str) -> SurveyRecord:
        """Return the record of a survey; raise UnknownName if it does not exist."""
        data = await self.store.read(check_name("survey_id", survey_id))
        if data is None:
            raise UnknownName(
                f"experiment {self.engine.exp_id!r} has no survey {survey_id!r}: messaging.surveys() lists them",
                kind="survey",
                value=survey_id,
            )
        return decode_record(data)

    async def create(
        self,
        model: object,
        agents: AgentSet,
        question: object,
        *,
        survey_id: str | None = None,
        subtopic: str,
        timeout: float | None,
    ) -> AsyncSurvey:
        """Create a survey, ask all agents, and return the survey.

        Raises: the same errors as `Messaging.create_survey`.
        """
        name = check_name("survey_id", survey_id) if survey_id is not None else f"survey-{secrets.token_hex(4)}"
        answer_model = AnswerModel.of(model)
        check_timeout(timeout, positive=True)
        if not agents:
            raise ConfigError("this survey would ask no agent: name agents in `to`, or create groups first")
        record = SurveyRecord(
            mailbox=survey_mailbox(name),
            question=encode_payload(question, self.engine.settings.payload_bytes),
            subtopic=check_subtopic(subtopic),
            schema=answer_model.schema,
            ints=agents.ints.astype("<i8").tobytes(),
            strings=tuple(sorted(agents.strings)),
            timeout=None if timeout is None else float(timeout),
            created_at=time.time(),
        )
        if not await self.store.create(name, encode(record)):
            raise AlreadyExists(
                f"experiment {self.engine.exp_id!r} has a survey {name!r} already: messaging.survey({name!r}) goes on "
                "with it; for a new survey choose another survey_id",
                kind="survey",
                value=name,
                owner=None,
            )
        survey = AsyncSurvey(self, name, record, answer_model)
        try:
            await survey.ask(np.arange(len(agents)), record.timeout)
        except BaseException as error:
            error.add_note(
                f"survey {name!r} has not asked all agents: messaging.survey({name!r}).remind() asks the rest"
            )
            raise
        await survey.update()
        return survey

    async def open(self, survey_id: str, model: object = None) -> AsyncSurvey:
        """Return a survey, with the answers that have come so far. Raises the same errors as `Messaging.survey`."""
        record = await self.record(survey_id)
        answer_model = AnswerModel.of_schema(record.schema) if model is None else AnswerModel.of(model)
        if answer_model.schema != record.schema:
            raise ConfigError(
                f"survey {survey_id!r} has another type of answers than {model!r}: pass the type with which it "
                f"was created, whose JSON schema is {record.schema.decode()}, or choose another id"
            )
        survey = AsyncSurvey(self, survey_id, record, answer_model)
        await survey.update()
        return survey

    async def ids(self) -> list[str]:
        """Return the ids of all surveys."""
        return await self.store.ids()

    async def remove(self, survey_id: str) -> None:
        """Delete a survey with its answers; raise UnknownName if it does not exist."""
        transport, mailbox = self.engine.transport, (await self.record(survey_id)).mailbox
        epoch = (await open_mailbox(self.engine, mailbox, 1)).epoch
        end = await transport.end_of(mailbox)
        if end.entry != START.entry:  # without this commit, the survey's answers would become dead letters
            await transport.commit(Conclusion(mailbox, epoch, Cursor(end.entry, 0), end.messages, end.nbytes))
        await transport.remove(mailbox, epoch)
        await self.store.remove(survey_id)
        self.ends.pop(survey_id, None)

    async def agents_of(self, groups: Collection[str] | None) -> AgentSet:
        """Return the agents of some groups (None: of all groups); raise UnknownName if a group does not exist."""
        records = {record.mailbox: record for record in (await self.engine.transport.load_directory(-1)).changed}
        names = [name for name, record in records.items() if record.exclusive] if groups is None else groups
        found = NO_AGENTS
        for name in names:
            if name not in records:
                raise UnknownName(
                    f"experiment {self.engine.exp_id!r} has no group {name!r}: messaging.groups() lists the groups",
                    kind="group",
                    value=name,
                )
            found |= records[name].agents()
        return found
