"""The seats of an experiment: agents for which people act on web pages, and the questions that wait for these people.

A group asks the desk what a person does in a step, and gets an answer when the person has sent one, or when the time
limit is exceeded. The web server of the seats asks the desk what to show, and brings it what people write. The desk is
in the interceptor's process, so that groups on all machines reach it, and so that the web server may end and start
again.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from ray_messaging.addressing.channels import AgentId, check_id
from ray_messaging.errors import ConfigError, InvalidAddress, NoQuestion, UnknownName
from ray_messaging.model.exact import encode_exactly

MOST_MESSAGES: Final = 20  # a person may send at most this many messages in a step
MOST_CHARACTERS: Final = 4_000  # a message of a person may have at most this many characters
MOST_RECIPIENTS: Final = 1_000  # a person's messages in a step may have at most this many recipients together
_HISTORY: Final = 200  # the page shows at most this many lines: the last ones of the conversation
_WAIT_S: Final = 25.0  # a call of `news` waits at most this long; the web server then calls again


class HeardMessage(msgspec.Struct, frozen=True):
    """A message in the inbox of a person. `asks` is True if the message is a question that the person may answer."""

    id: str
    from_id: AgentId | None
    text: str
    asks: bool = False


class SeatQuestion(msgspec.Struct, frozen=True):
    """What a person has heard in a step. `more` is the number of older messages that were left out.

    `to` has the agents to which the person may write, beside those that the person has heard (None: to all agents).
    """

    agent: AgentId
    step: int
    heard: tuple[HeardMessage, ...]
    more: int = 0
    to: tuple[AgentId, ...] | None = None


class Written(msgspec.Struct, frozen=True):
    """A message that a person sends. `answers` is the id of the question that this message answers (None: none)."""

    to: tuple[AgentId, ...]
    text: str
    answers: str | None = None


class SeatAnswer(msgspec.Struct, frozen=True):
    """What a person has sent in a step; `present` is False if the person has sent nothing in time, or has left."""

    present: bool
    messages: tuple[Written, ...] = ()


ABSENT: Final = SeatAnswer(present=False)


class Line(msgspec.Struct, frozen=True):
    """A line of the conversation as the page shows it: heard from an agent, said by the person, or a note.

    `who` has the agent that was heard, or the agents to whom the person wrote.
    """

    kind: str
    step: int
    text: str
    who: tuple[AgentId | None, ...] = ()


class SeatFacts(msgspec.Struct):
    """Facts about a seat. They are stored on the Redis server of the experiment.

    An experiment that is started again reads these facts, so that the links to seats still work.
    """

    token: str
    consent: str = ""
    ready: bool = False
    away: bool = False
    lines: list[Line] = []
    last: SeatQuestion | None = None  # the last question that the person has answered
    answer: SeatAnswer = ABSENT


class SeatView(msgspec.Struct, frozen=True):
    """What the page of a seat shows. The number `version` rises with each change.

    `question` is the question that waits for the person, and `lines` is the conversation before it.
    """

    version: int
    agent: AgentId
    ready: bool
    consent: str
    away: bool
    ended: bool
    lines: Sequence[Line]
    question: SeatQuestion | None
    left_s: float | None  # how long the person may still answer; None: no limit, or no open question


class _Seat:
    """An agent's seat, with its stored facts and the question that waits for the person."""

    def __init__(self, facts: SeatFacts) -> None:
        self.facts = facts
        self.question: SeatQuestion | None = None
        self.ends: float | None = None  # the event loop's time at which the time to answer is over; None: no limit
        self.answer: asyncio.Future[SeatAnswer] | None = None
        self.over = -1  # the last step whose question was closed in this process
        self.version = secrets.randbelow(2**40)  # random, because pages may know versions of an earlier process
        self.changed = asyncio.Event()
        self.keeping = asyncio.Lock()  # held while facts change and are stored, so that the newest are stored last

    def change(self) -> None:
        self.version += 1
        self.changed.set()
        self.changed = asyncio.Event()

    def close(self, answer: SeatAnswer, note: str = "") -> None:
        """Give the waiting group the answer to the open question, and add the step to the shown conversation.

        Args: `note` is a line that is added to the conversation ("": none).
        """
        question, self.question = self.question, None
        if question is not None and self.answer is not None and not self.answer.done():
            self.over = max(self.over, question.step)
            self.facts.lines = self.lines_after(question, answer, note)
            self.answer.set_result(answer)
        self.change()

    def lines_after(self, question: SeatQuestion, answer: SeatAnswer, note: str = "") -> list[Line]:
        """Return the conversation with what was heard and said in a step.

        Args: `note` is a line that is added at the end ("": none).
        """
        heard = [Line("heard", question.step, each.text, (each.from_id,)) for each in question.heard]
        said = [Line("said", question.step, each.text, each.to) for each in answer.messages]
        notes = [Line("note", question.step, note)] if note else []
        return [*self.facts.lines, *heard, *said, *notes][-_HISTORY:]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(SeatFacts).decode
_decode_id: Callable[[bytes], AgentId] = msgspec.json.Decoder(AgentId).decode


class SeatDesk:
    """The seats of one experiment: the agents for which people act on web pages.

    Args: `keep` stores the facts about a seat, and `load` reads all stored facts. `limit` is how many bytes an
    answer may have. A person has `timeout_s` seconds to answer in each step (None: no limit).
    """

    def __init__(
        self,
        load: Callable[[], Awaitable[Mapping[bytes, bytes]]],
        keep: Callable[[bytes, bytes], Awaitable[object]],
        limit: int,
        timeout_s: float | None,
    ) -> None:
        self._load = load
        self._keep = keep
        self._limit = limit
        self._timeout_s = timeout_s
        self._loaded: dict[AgentId, _Seat] | None = None
        self._loading = asyncio.Lock()
        self._opening = asyncio.Lock()
        self._ended = False

    async def _seats(self) -> dict[AgentId, _Seat]:
        async with self._loading:
            if self._loaded is None:
                kept = await self._load()
                self._loaded = {_decode_id(field): _Seat(_decode(facts)) for field, facts in kept.items()}
            return self._loaded

    async def _seat(self, agent: AgentId) -> _Seat:
        found = (await self._seats()).get(agent)
        if found is None:
            raise UnknownName(
                f"agent {agent!r} has no seat: messaging.seat({agent!r}) makes one", kind="seat", value=str(agent)
            )
        return found

    async def _save(self, agent: AgentId, facts: SeatFacts) -> None:
        await self._keep(_encode(agent), _encode(facts))

    # -- calls of the experiment ----------------------------------------------------------------------------------

    async def open(self, agent: AgentId, consent: str) -> str:
        """Make a seat for an agent, unless it has one; return the secret token of its link."""
        seats, agent = await self._seats(), check_id(agent)
        async with self._opening:
            seat = seats.get(agent) or _Seat(SeatFacts(secrets.token_urlsafe(32)))
            async with seat.keeping:
                if seat.facts.consent != consent:  # the person has agreed only to the old text, and must agree again
                    seat.facts.consent, seat.facts.ready = consent, False
                await self._save(agent, seat.facts)
            seats[agent] = seat
        seat.change()
        return seat.facts.token

    async def tokens(self) -> dict[AgentId, str]:
        """Return, by agent, the secret token in the link to the agent's seat."""
        return {agent: seat.facts.token for agent, seat in (await self._seats()).items()}

    async def wait_ready(self, agent: AgentId, timeout_s: float) -> bool:
        """Wait for at most `timeout_s` seconds until the person is ready; return whether the person is ready."""
        seat = await self._seat(agent)
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not seat.facts.ready:
                    await seat.changed.wait()
        return seat.facts.ready

    async def end(self) -> None:
        """Tell all pages that the experiment is over."""
        self._ended = True
        for seat in (self._loaded or {}).values():
            seat.change()

    # -- calls of the groups --------------------------------------------------------------------------------------

    async def ask(self, question: SeatQuestion) -> SeatAnswer:
        """Ask the person at a seat; return the answer.

        Return ABSENT if the person exceeds the time limit, or has left, or if there is no such seat. If the person has
        answered this question before, return the same answer: a group that runs its step again asks again.
        """
        seat = (await self._seats()).get(question.agent)
        if seat is None:
            return ABSENT
        if seat.facts.last == question:
            return seat.facts.answer
        if seat.question != question or seat.answer is None:
            if seat.answer is not None and not seat.answer.done():
                # The step has begun again with another inbox, and nobody waits for the answer to the old question.
                seat.answer.cancel()
            loop = asyncio.get_running_loop()
            seat.question, seat.answer = question, loop.create_future()
            seat.ends = None if self._timeout_s is None else loop.time() + self._timeout_s
            if seat.facts.away:
                seat.close(ABSENT)
            else:
                if self._timeout_s is not None:
                    loop.call_later(self._timeout_s, self._time_over, seat, seat.answer)
                seat.change()
        return await asyncio.shield(seat.answer)

    def _time_over(self, seat: _Seat, answer: "asyncio.Future[SeatAnswer]") -> None:
        if seat.answer is answer and not answer.done():
            seat.close(ABSENT, "Your time for this step was over, so nothing was sent.")

    async def tell(self, agent: AgentId, step: int, text: str) -> None:
        """Show a note about a step to the person at an agent's seat."""
        if (seat := (await self._seats()).get(agent)) is not None:
            seat.facts.lines = [*seat.facts.lines, Line("note", step, text)][-_HISTORY:]
            seat.change()

    # -- calls of the web server, for the pages -------------------------------------------------------------------

    async def news(self, agent: AgentId, seen: int) -> SeatView:
        """Return what the web page of an agent's seat shows.

        If `seen` is the newest version of the page, wait until the page changes, for at most 25 seconds.
        """
        seat = await self._seat(agent)
        with suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_S):
                while seat.version == seen and not self._ended:
                    await seat.changed.wait()
        facts, loop = seat.facts, asyncio.get_running_loop()
        left_s = None if seat.question is None or seat.ends is None else max(0.0, seat.ends - loop.time())
        return SeatView(
            seat.version,
            agent,
            facts.ready,
            facts.consent,
            facts.away,
            self._ended,
            facts.lines,
            seat.question if facts.ready else None,
            left_s,
        )

    async def set_ready(self, agent: AgentId) -> None:
        """Record that the person is ready, and agrees to the text of consent."""
        seat = await self._seat(agent)
        async with seat.keeping:
            seat.facts.ready = True
            await self._save(agent, seat.facts)
        seat.change()

    async def set_away(self, agent: AgentId, *, away: bool) -> None:
        """Record that the person leaves or comes back. No step waits for a person who has left."""
        seat = await self._seat(agent)
        async with seat.keeping:
            seat.facts.away = away
            await self._save(agent, seat.facts)
        if away:
            seat.close(ABSENT, "You have left.")
        else:
            seat.change()

    async def answer(self, agent: AgentId, step: int, messages: Sequence[Mapping[str, Any]]) -> None:
        """Pass on to the group what a person sends in a step.

        Raises: ConfigError, whose text is for the person, if something cannot be sent, or the step is over; NoQuestion
        if the group has not asked in this step yet, for example because it runs the step again after a failure.
        """
        seat = await self._seat(agent)
        async with seat.keeping:
            await self._take(seat, agent, step, messages)

    async def _take(self, seat: _Seat, agent: AgentId, step: int, messages: Sequence[Mapping[str, Any]]) -> None:
        question, waiting, last = seat.question, seat.answer, seat.facts.last
        if question is None or question.step != step:
            if last is not None and last.step == step and _answer(messages, last) == seat.facts.answer:
                return  # the page sends an answer again, because it was not told that the answer had arrived
            # `seat.over` does not count steps that were closed in an earlier process. The open question shows that all
            # earlier steps are over.
            if step <= seat.over or (last is not None and last.step == step) or (question and step < question.step):
                raise _over(step)
            # The run has begun again, or this process is new, and the group has not asked in this step yet.
            text = f"agent {agent!r} has not been asked in step {step} yet: send this answer again in a moment"
            raise NoQuestion(text, question=f"step {step}", agent=agent)
        answer = _answer(messages, question)
        if len(messages) > MOST_MESSAGES or sum(len(each.to) for each in answer.messages) > MOST_RECIPIENTS:
            raise ConfigError(
                f"This is too much for one step: send at most {MOST_MESSAGES} messages, to {MOST_RECIPIENTS} recipients"
            )
        if len(encode_exactly(msgspec.to_builtins(answer), "an answer")) > self._limit:
            raise ConfigError("Your messages in this step are too long together: please shorten them.")
        # The answer is stored before the group gets it. If this process dies, the group asks again, and gets the stored
        # answer.
        lines = seat.lines_after(question, answer)
        await self._save(agent, replace(seat.facts, last=question, answer=answer, lines=lines))
        if seat.question is not question or seat.answer is not waiting:
            await self._save(agent, seat.facts)  # the question was closed meanwhile, so the answer is taken back
            raise _over(step)
        seat.facts.last, seat.facts.answer = question, answer
        seat.close(answer)


def _over(step: int) -> ConfigError:
    return ConfigError(f"Step {step} is over, so this was not sent.")


def _answer(messages: Sequence[Mapping[str, Any]], question: SeatQuestion) -> SeatAnswer:
    """Return the messages that a person has written, as a SeatAnswer; raise ConfigError if one cannot be sent."""
    return SeatAnswer(present=True, messages=tuple(_checked(each, question) for each in messages))


def _checked(given: Mapping[str, Any], question: SeatQuestion) -> Written:
    """Return a message that a person has written; raise ConfigError if it cannot be sent."""
    text, answers = given.get("text"), given.get("answers")
    if not isinstance(text, str) or not text.strip():
        raise ConfigError("A message needs a text.")
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(f"A message has at most {MOST_CHARACTERS:,} characters, and this one has {len(text):,}.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError("This text has characters that cannot be sent: please remove them.") from None
    if answers is not None:
        asked = next((each for each in question.heard if each.id == answers and each.asks), None)
        if asked is None:
            raise ConfigError("This question was not asked in this step: reload the page to see the open questions.")
        return Written(() if asked.from_id is None else (asked.from_id,), text, asked.id)
    given_to = given.get("to")
    if not isinstance(given_to, list) or not given_to:
        raise ConfigError("Choose at least one recipient.")
    try:
        to = tuple(dict.fromkeys(map(check_id, given_to)))
    except InvalidAddress as error:
        raise ConfigError(f"The message cannot be sent to this recipient: {error}") from error
    known = {*(question.to or ()), *(each.from_id for each in question.heard)}
    if question.to is not None and (strangers := [each for each in to if each not in known]):
        raise ConfigError(f"You cannot write to agent {strangers[0]!r}: choose a recipient that the page shows.")
    return Written(to, text)
