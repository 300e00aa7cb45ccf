"""The surveys of an experiment, for async code: create one, find one, remove one."""

import asyncio
import secrets
import time
from collections.abc import Collection

import numpy as np

from ray_messaging.addressing.channels import check_name, check_subtopic, survey_mailbox
from ray_messaging.engine import Engine
from ray_messaging.errors import AlreadyExists, ConfigError, UnknownName
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet
from ray_messaging.model.columns import encode_payload
from ray_messaging.receiving.call_checks import check_timeout
from ray_messaging.surveys.answer_model import AnswerModel
from ray_messaging.surveys.async_survey import AsyncSurvey, open_mailbox, unknown
from ray_messaging.surveys.record import SurveyRecord, decode_record, encode
from ray_messaging.transports.cursors import START, Cursor


class Surveys:
    """The surveys of an experiment; `engine` sends the questions, as the user."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = engine.transport.surveys
        self._reading = asyncio.Lock()

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
        """Ask all agents; return the survey. Raises as `Messaging.create_survey`."""
        name = check_name("survey_id", survey_id) if survey_id is not None else f"survey-{secrets.token_hex(4)}"
        answer_model = AnswerModel.of(model)
        check_timeout(timeout, positive=True)
        if not agents:
            raise ConfigError("a survey of nobody: `to` names no agent, or the experiment hosts none yet")
        record = SurveyRecord(
            mailbox=survey_mailbox(name),
            question=encode_payload(question, self._engine.settings.payload_bytes),
            subtopic=check_subtopic(subtopic),
            schema=answer_model.schema,
            ints=agents.ints.astype("<i8").tobytes(),
            strings=tuple(sorted(agents.strings)),
            timeout=None if timeout is None else float(timeout),
            created_at=time.time(),
        )
        if not await self._store.create(name, encode(record)):
            raise AlreadyExists(
                f"experiment {self._engine.exp_id!r} has a survey {name!r} already: messaging.survey({name!r}) goes on "
                "with it; choose another survey_id for a new one",
                kind="survey",
                value=name,
                owner=None,
            )
        survey = AsyncSurvey(self._engine, self._reading, name, record, answer_model)
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
        """Return a survey with the answers that have come; raises as `Messaging.survey`."""
        data = await self._store.read(check_name("survey_id", survey_id))
        if data is None:
            raise unknown(self._engine, survey_id)
        record = decode_record(data)
        answer_model = AnswerModel.of_schema(record.schema) if model is None else AnswerModel.of(model)
        if answer_model.schema != record.schema:
            raise ConfigError(
                f"survey {survey_id!r} was created with another type of answers than {model!r}: its JSON schema is "
                f"{record.schema.decode()}"
            )
        survey = AsyncSurvey(self._engine, self._reading, survey_id, record, answer_model)
        await survey.update()
        return survey

    async def ids(self) -> list[str]:
        """Return the ids of all surveys."""
        return await self._store.ids()

    async def remove(self, survey_id: str) -> None:
        """Delete a survey with its answers; raise UnknownName."""
        data = await self._store.read(check_name("survey_id", survey_id))
        if data is None:
            raise unknown(self._engine, survey_id)
        transport, mailbox = self._engine.transport, decode_record(data).mailbox
        epoch = (await open_mailbox(self._engine, mailbox, 1)).epoch
        end = await transport.end_of(mailbox)
        if end.entry != START.entry:  # else its answers would become dead letters
            await transport.commit(mailbox, epoch, Cursor(end.entry, 0), messages=end.messages, nbytes=end.nbytes)
        await transport.remove(mailbox, epoch)
        await self._store.remove(survey_id)

    async def agents_of(self, groups: Collection[str] | None) -> AgentSet:
        """Return the agents of some groups, or of all (None); raise UnknownName."""
        records = {record.mailbox: record for record in (await self._engine.transport.load_directory(-1)).changed}
        names = [name for name, record in records.items() if record.exclusive] if groups is None else groups
        found = NO_AGENTS
        for name in names:
            if name not in records:
                raise UnknownName(f"experiment {self._engine.exp_id!r} has no group {name!r}", kind="group", value=name)
            found |= records[name].agents()
        return found
