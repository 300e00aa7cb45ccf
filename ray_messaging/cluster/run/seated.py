"""The model of a group in which people act for some agents.

What a person does in a step is stored like the result of a call through `me.remember`. So if the step runs again, the
person is not asked again.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ray_messaging.addressing.channels import AgentId
from ray_messaging.cluster.seat_desk import HeardMessage, SeatAnswer, SeatQuestion
from ray_messaging.errors import FrameError, MessagingError

if TYPE_CHECKING:
    from ray_messaging.cluster.run.agent import Agent, Model
    from ray_messaging.message import Message
    from ray_messaging.messages import Messages

AskSeat = Callable[[SeatQuestion], Awaitable[SeatAnswer]]
TellSeat = Callable[[AgentId, int, str], object]

MOST_HEARD: Final = 100  # a person reads at most this many messages in a step, the last ones
_LONGEST: Final = 4_000  # a person reads at most this many characters of a message
_MOST_NAMED: Final = 1_000  # at most this many neighbours are offered to a person as recipients

_encode_json = msgspec.json.Encoder(enc_hook=repr).encode


class SeatedModel:
    """A model in which people act for the agents in `seats`. For all other agents the user's model is called.

    Args: `ask` asks the person who acts for an agent, and returns the answer. `tell` shows this person a note. With
    `has_graph`, a person may write only to the agent's neighbours, and to agents whose messages are in the inbox.
    """

    def __init__(
        self, model: "Model", seats: frozenset[AgentId], ask: AskSeat, tell: TellSeat, *, has_graph: bool
    ) -> None:
        self._model = model
        self._seats = seats
        self._ask = ask
        self._tell = tell
        self._has_graph = has_graph

    async def __call__(self, me: "Agent", inbox: "Messages") -> object:
        """Let a person act for an agent in `seats`; for any other agent, call the user's model."""
        if me.id in self._seats:
            await self._person(me, inbox)
            return None
        answer = self._model(me, inbox)
        return await answer if inspect.isawaitable(answer) else answer

    async def _person(self, me: "Agent", inbox: "Messages") -> None:
        me.stay_active()  # a person may write without having heard anything
        messages = [*inbox]
        heard = [heard_of(message) for message in messages[-MOST_HEARD:]]
        more = len(messages) - len(heard)
        to = tuple(me.neighbours[:_MOST_NAMED]) if self._has_graph else None

        async def seat(heard: tuple[HeardMessage, ...]) -> Any:  # noqa: ANN401 - as `to_builtins` returns it
            question = SeatQuestion(me.id, me.step, heard, more, to)
            return msgspec.to_builtins(await self._ask(question))

        seat.__qualname__ = "seat"  # the event log records the call under this name
        calls = me._society.calls
        assert calls is not None
        said = await calls.call(me, seat, (tuple(heard),), {}, by_person=True)
        questions = {message.id: message for message in messages}
        for each in said["messages"]:
            try:
                payload = {"content": each["text"]}
                if each["answers"] is not None:
                    me.reply(questions[each["answers"]], payload)
                else:
                    for to_id in each["to"]:
                        me.send(to_id, payload)
            except MessagingError as error:  # what a person writes must not end the run
                self._tell(me.id, me.step, f"This was not sent: {each['text']!r}. {error}")


def heard_of(message: "Message") -> HeardMessage:
    """Return a message as a person reads it: the text of its payload, then the payload's other fields as JSON.

    A text that is too long is cut.
    """
    try:
        payload = message.payload
    except FrameError:
        payload = message.data.decode(errors="replace")
    words = payload if isinstance(payload, str) else ""
    if isinstance(payload, dict):
        key = next((key for key in ("content", "text") if isinstance(payload.get(key), str)), None)
        words, payload = payload.get(key, ""), {name: value for name, value in payload.items() if name != key}
    if payload and payload is not words:
        words = "\n".join(filter(None, (words, _encode_json(payload).decode())))
    text = words if len(words) <= _LONGEST else f"{words[:_LONGEST]}\u2026"
    from_id = message.from_id if isinstance(message.from_id, int | str) else None
    return HeardMessage(message.id, from_id, text, message.expects_answer)


def people_by(interceptor: Any) -> tuple[AskSeat, TellSeat]:  # noqa: ANN401 - a Ray actor handle
    """Return the functions `ask` and `tell` for a SeatedModel. Both call the interceptor, which has the people's seats.

    The functions may be called in any thread. `ask` calls the interceptor in the event loop in which `people_by` was
    called.
    """
    from ray_messaging.cluster.handles.connection import insist  # noqa: PLC0415 - brings Ray, which local runs lack
    from ray_messaging.cluster.handles.group.waiting import InLoop  # noqa: PLC0415 - as above

    loop = asyncio.get_running_loop()

    async def asked(question: SeatQuestion) -> SeatAnswer:
        call = partial(interceptor.ask_seat.remote, question)
        found: SeatAnswer = await insist(InLoop(), interceptor, call, actor_name="the interceptor")
        return found

    async def ask(question: SeatQuestion) -> SeatAnswer:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(asked(question), loop))

    return ask, interceptor.tell_seat.remote
