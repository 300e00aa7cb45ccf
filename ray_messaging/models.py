"""Clients of language models, for `me.remember`. They need `pip install 'ray-messaging[llm]'`."""

import asyncio
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit
from uuid import uuid4
from weakref import WeakKeyDictionary

import pydantic

from ray_messaging.common.awaitables import Life, at_loop_end
from ray_messaging.common.backoff import CALL_RETRY, Backoff
from ray_messaging.common.prefix_queue import PrefixQueue
from ray_messaging.common.sockets import is_http_address
from ray_messaging.common.texts import short_repr
from ray_messaging.errors import AnswerUnfit, ConfigError, ModelFailed, ModelTimeout
from ray_messaging.model.call_usage import CallMeter, metering, report_usage
from ray_messaging.model.whole_numbers import whole_number

_OPENAI: Final = "https://api.openai.com/v1"
_KEY, _URL = "OPENAI_API_KEY", "OPENAI_BASE_URL"
_TEXT: Final = 500  # our errors quote at most this many characters of a server's error or a model's answer
_NOT_FOUND: Final = 404
_TOO_MANY: Final = 429
_FIRST: Final = 8.0  # at the beginning, this many requests may be under way
_UNFIT = "This answer does not fit the schema: {}. Answer again, with JSON that fits it, and nothing else."


class Chat:
    """A language model behind an endpoint like OpenAI's: `await me.remember(Chat(model="gpt-4o-mini"), prompt)`.

    A call returns the text of the answer. With `form=Plan` it returns a dict with the fields of that class, so that
    `Plan(**answer)` works. The call reports the tokens that it used. If the server answers 429 or 5xx, does not
    answer in time, or cannot be reached, the request is sent again, with the same Idempotency-Key.

    The number of requests that may be under way adapts to the server. It begins at 8, and grows by one with each answer
    until the first 429 or timeout. A 429 or timeout halves the number, but requests that were under way together halve
    it only once. From then on the number n grows by one only after n further answers. Requests that wait are sent in
    the order of their steps, and within a step in the order of their prompts' texts, because servers cache the prefixes
    of prompts.

    Args:
        model: The model's name.
        base_url: The address of the endpoint. None: the variable OPENAI_BASE_URL, or if it is not set, OpenAI's
            address.
        api_key: The key, which no error and no repr shows. None: the variable OPENAI_API_KEY of the process that makes
            the call. Some servers need no key.
        form: A pydantic class. The model must answer with its fields.
        system: The system prompt, which comes first in each request.
        seed: The seed of each request, for servers that accept one.
        timeout: Seconds for one request.
        patience: Seconds after the first failure of a request during which it is sent again. After that the call fails.
        corrections: How often the model is asked again, if its answer does not fit the form.
        concurrency: How many requests may be under way at most in one event loop.
        options: Further fields of each request, such as {"temperature": 0.7}.

    Raises: ConfigError if an argument is not valid.
    """

    def __init__(
        self,
        *,
        model: str,
        base_url: str | None = None,
        api_key: str | pydantic.SecretStr | None = None,
        form: type[pydantic.BaseModel] | None = None,
        system: str | None = None,
        seed: int | None = None,
        timeout: float = 60.0,
        patience: float = 300.0,
        corrections: int = 2,
        concurrency: int = 1000,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(model, str) or not model.strip():
            raise ConfigError(f"model={model!r} must be the name of a model")
        if form is not None and not (isinstance(form, type) and issubclass(form, pydantic.BaseModel)):
            raise ConfigError(f"form={form!r} must be a class that derives from pydantic.BaseModel")
        if form is not None and form.__pydantic_complete__:
            # Before version 2.10, pydantic keeps in this attribute the local variables of the function that defines the
            # class. Some of them cannot be pickled.
            form.__pydantic_parent_namespace__ = None
        if not isinstance(timeout, int | float) or not timeout > 0:
            raise ConfigError(f"timeout={timeout!r} must be a number of seconds above 0")
        if not isinstance(patience, int | float) or not patience >= 0:
            raise ConfigError(f"patience={patience!r} must be a number of seconds, at least 0")
        if whole_number(corrections) is None:
            raise ConfigError(f"corrections={corrections!r} must be a whole number, at least 0")
        if not whole_number(concurrency):
            raise ConfigError(f"concurrency={concurrency!r} must be a whole number, at least 1")
        self.base_url = _checked_url(base_url or os.environ.get(_URL) or _OPENAI)
        self.model, self.form, self.system, self.seed = model, form, system, seed
        self._key = _checked_key(api_key)
        self._timeout, self._patience = timeout, patience
        self._corrections, self._concurrency = corrections, concurrency
        self._options = dict(options or {})
        self._request = self._whole_request()
        self._forget_lines()
        self.__qualname__ = f"Chat({model})"  # the name of the function in the log

    def __repr__(self) -> str:
        return f"Chat(model={self.model!r}, base_url={self._address!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_lines", "_opening")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget_lines()

    def _forget_lines(self) -> None:
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()
        # For each event loop whose `_Line` is being made, the task that makes it.
        self._opening: dict[asyncio.AbstractEventLoop, asyncio.Task[None]] = {}

    def call_content(self) -> object:
        """Return what an answer depends on besides the prompt.

        This is the server's address and the other fields of the request, such as the model, but not the API key.
        """
        return ["Chat", self._address, self.system, self._request]

    async def __call__(self, prompt: str | Sequence[Mapping[str, Any]], /) -> Any:  # noqa: ANN401 - text, or a dict
        """Ask the model; return its answer.

        Args: `prompt` is the user's turn, or several turns as OpenAI has them: [{"role": "user", "content": "..."}].
        Raises: ModelTimeout if the last request was not answered in time; AnswerUnfit if no answer has a text that fits
        the form; ModelFailed if the server refuses the request, or answers 429 or 5xx or cannot be reached during
        `patience` seconds; ConfigError if there is no key, or the server refuses it, or the openai package is not
        installed.
        """
        turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(turn) for turn in prompt]
        if self.system is not None:
            turns.insert(0, {"role": "system", "content": self.system})
        identity, tries, text, why = uuid4().hex, 0, None, ""
        order = "\n".join(str(turn.get("content")) for turn in turns)
        for correction in range(self._corrections + 1):
            reply, sent = await self._reply(turns, f"{identity}-{correction}", order)
            tries += sent
            if getattr(reply, "usage", None) is not None:
                report_usage(reply, model=self.model)
            text, why = _text_of(reply)
            if text is not None and self.form is None:
                return text
            if text is not None and self.form is not None:
                try:
                    return self.form.model_validate_json(text).model_dump(mode="json")
                except pydantic.ValidationError as error:
                    why = _first_problem(error)
                turns = [
                    *turns,
                    {"role": "assistant", "content": text},
                    {"role": "user", "content": _UNFIT.format(why)},
                ]
        raise AnswerUnfit(
            f"model {self.model!r} at {self._address} gave no usable answer in {self._corrections + 1} tries: {why}; "
            f"the last answer was {short_repr(text)}",
            model=self.model, tries=tries, status=200, answer=(text or "")[:_TEXT],
        )  # fmt: skip

    def _whole_request(self) -> dict[str, Any]:
        request: dict[str, Any] = {"model": self.model}
        if self.seed is not None:
            request["seed"] = self.seed
        if self.form is not None:
            schema = {"name": self.form.__name__, "schema": _strict(self.form.model_json_schema()), "strict": True}
            request["response_format"] = {"type": "json_schema", "json_schema": schema}
        return request | self._options

    async def _reply(self, turns: list[dict[str, Any]], identity: str, order: str) -> tuple[Any, int]:
        """Send a request until the server answers it; return the answer, and the number of times that it was sent.

        Args: `turns` are the turns of the conversation, and `identity` is the Idempotency-Key. `order` is a text:
        requests of one step that wait are sent in the ascending order of these texts.
        """
        # Outside of steps, new requests may always keep coming. If they were sorted, some might wait forever.
        meter = metering.get()
        step, order = (-1, "") if meter is None else (meter.step, order)
        line = await self._line()
        tries, backoff = 0, Backoff(CALL_RETRY)
        while True:
            tries += 1
            with _waiting(meter):
                place = await line.window.enter(step, order)
            answered: bool | None = None
            try:
                async with asyncio.timeout(self._timeout):
                    headers = {"Idempotency-Key": identity}
                    create = line.client.chat.completions.create
                    reply = await create(**self._request, messages=turns, extra_headers=headers)
                answered = True
            except Exception as error:  # noqa: BLE001 - each is translated, or the request is sent again
                failure = self._failure(error)
                answered = False if failure.is_limit else None
            finally:
                line.window.leave(place, answered=answered)
            if answered:
                return reply, tries
            if backoff.deadline is None:
                backoff.deadline = monotonic() + self._patience
            pause_s = backoff.next_pause() if failure.pause_s is None else failure.pause_s
            if not failure.may_pass or monotonic() + pause_s > backoff.deadline:
                raise self._error(failure, tries)
            if failure.pause_s:
                line.window.pause(failure.pause_s)
            await asyncio.sleep(pause_s)

    # -- failures -------------------------------------------------------------------------------------------------

    def _failure(self, error: Exception) -> "_Failure":
        status = getattr(error, "status_code", None)
        text = self._without_key(str(error.__cause__ or error) if status is None else str(error))[:_TEXT]
        if isinstance(error, TimeoutError) or "Timeout" in type(error).__name__:
            return _Failure(f"did not answer within timeout={self._timeout:g} s", None, may_pass=True, is_limit=True)
        if status == _TOO_MANY:
            pause_s = _retry_after(error)
            return _Failure(f"answered {status}: {text}", status, may_pass=True, is_limit=True, pause_s=pause_s)
        if status == _NOT_FOUND:
            text += "; check base_url, and the name of the model"
        if status is not None:
            return _Failure(f"answered {status}: {text}", status, may_pass=status >= 500, pause_s=_retry_after(error))
        unreached = type(error).__name__ == "APIConnectionError"
        what = "cannot be reached" if unreached else f"gave {type(error).__name__}"
        remedy = "; check base_url, and that its server runs" if unreached else ""
        return _Failure(f"{what}: {text}{remedy}", None, may_pass=unreached)

    def _error(self, failure: "_Failure", tries: int) -> Exception:
        text = f"{self._address} {failure.text}"
        if failure.status in {401, 403}:
            return ConfigError(f"{text}: pass a valid api_key, or set {_KEY} where the calls are made")
        kind = ModelTimeout if failure.status is None and failure.is_limit else ModelFailed
        text += f" (model {self.model!r}, tries: {tries})"
        return kind(text, model=self.model, tries=tries, status=failure.status)

    def _without_key(self, text: str) -> str:
        key = self._secret()
        return text.replace(key, "***") if key else text

    @property
    def _address(self) -> str:
        """Return the endpoint's address, without user and password."""
        parts = urlsplit(self.base_url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    # -- the client -----------------------------------------------------------------------------------------------

    def _secret(self) -> str | None:
        return os.environ.get(_KEY) if self._key is None else self._key.get_secret_value()

    async def _line(self) -> "_Line":
        """Return the running event loop's own client. A connection can be used only in the loop that opened it."""
        loop = asyncio.get_running_loop()
        while (found := self._lines.get(loop)) is None:
            if (opening := self._opening.get(loop)) is None:
                opening = self._opening[loop] = loop.create_task(self._open_line(loop), name="ray_messaging client")
                opening.add_done_callback(lambda _: self._opening.pop(loop))
            await asyncio.shield(opening)  # if this call is cancelled, the task goes on, as other calls may need it
        return found

    async def _open_line(self, loop: asyncio.AbstractEventLoop) -> None:
        # The client is made in a thread, because it imports openai. That takes a second, and must not block other
        # agents.
        client = await asyncio.to_thread(self._client)
        life = await at_loop_end(partial(self._end_line, loop, client))
        self._lines[loop] = _Line(client, _Window(self._concurrency), life)

    async def _end_line(self, loop: asyncio.AbstractEventLoop, client: Any) -> None:  # noqa: ANN401 - openai is optional
        self._lines.pop(loop, None)
        await client.close()

    def _client(self) -> Any:  # noqa: ANN401 - openai is optional
        try:
            import anyio.lowlevel  # noqa: PLC0415 - openai needs it
            import openai  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigError("models.Chat needs the openai package: pip install 'ray-messaging[llm]'") from None
        key = self._secret()
        if key is None and self.base_url == _OPENAI:
            raise ConfigError(f"there is no API key: pass api_key, or set {_KEY} where the calls are made")
        client: Any = openai.AsyncOpenAI(api_key=key or "none", base_url=self.base_url, max_retries=0, timeout=None)
        _ = client.chat.completions  # imports the modules of openai that requests need, in this thread
        asyncio.run(anyio.lowlevel.checkpoint())  # makes anyio import its backend now, and not in the first request
        return client


@contextmanager
def _waiting(meter: CallMeter | None) -> Iterator[None]:
    """In the `with` block, mark a call by `me.remember` as one that waits for a limit."""
    if meter is not None:
        meter.waiting = True
    try:
        yield
    finally:
        if meter is not None:
            meter.waiting = False


class _Line(NamedTuple):
    """The HTTP client of one event loop, and the limit of its requests.

    When the loop ends, `life` closes the client.
    """

    client: Any
    window: "_Window"
    life: Life


class _Failure(NamedTuple):
    """Why a request failed.

    With `may_pass` the request may succeed later. `is_limit` is true for a 429 or a timeout, which mean that too many
    requests were under way. `pause_s` is the server's Retry-After in seconds, or None.
    """

    text: str
    status: int | None
    may_pass: bool = False
    is_limit: bool = False
    pause_s: float | None = None


class _Window:
    """Limit of the number of requests under way, which grows with answers and is halved by a 429 or a timeout.

    An answer counts only if, when it arrives, as many requests are under way as the limit allows. Until the limit is
    first halved, it grows by one with each such answer. After that, when the limit is n, it grows by one only after n
    such answers. If several requests that were under way together get a 429 or a timeout, the limit is halved once.
    """

    def __init__(self, most: int) -> None:
        self.size = min(_FIRST, most)
        self.under_way = 0
        self._most = most
        self._cuts = 0
        self._waiting = PrefixQueue[asyncio.Future[None]]()
        self._paused_until = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def enter(self, step: int = 0, text: str = "") -> int:
        """Wait until a request may be sent; return how often the limit was halved so far, which `leave` needs.

        Args: `step` and `text` give the request its place among those that wait. Requests of the lowest step are sent
        first, and the requests of one step in the order of their texts.
        """
        if self._waiting or self.under_way >= int(self.size) or monotonic() < self._paused_until:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.push(turn, step, text)
            self._let_in()
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.under_way -= 1
                    self._let_in()
                raise
        else:
            self.under_way += 1
        return self._cuts

    def leave(self, cuts: int, *, answered: bool | None) -> None:
        """Record that a request has ended.

        Args: `cuts` is what `enter` returned. `answered` is True if the request was answered, False if it failed
        because too many were under way, and None if it failed for another reason.
        """
        if answered and self.under_way >= int(self.size):
            self.size = min(float(self._most), self.size + (1 / self.size if self._cuts else 1))
        elif answered is False and cuts == self._cuts:
            self._cuts += 1
            self.size = max(1.0, self.size / 2)
        self.under_way -= 1
        self._let_in()

    def pause(self, seconds: float) -> None:
        """Let no request begin for some seconds."""
        self._paused_until = max(self._paused_until, monotonic() + seconds)

    def _resume(self) -> None:
        self._timer = None
        self._let_in()

    def _let_in(self) -> None:
        if (left_s := self._paused_until - monotonic()) > 0:
            if self._timer is None and self._waiting:
                self._timer = asyncio.get_running_loop().call_later(left_s, self._resume)
            return
        while self._waiting and self.under_way < int(self.size):
            if not (turn := self._waiting.pop()).done():
                self.under_way += 1
                turn.set_result(None)


def _strict(schema: Any) -> Any:  # noqa: ANN401 - a JSON schema, or a part of one
    """Return a JSON Schema for OpenAI's strict mode, in which objects have all of their properties and no others."""
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {
        # In "properties" and "$defs", the keys are names that a user chose, and one of them may be `default`.
        name: {each: _strict(of) for each, of in part.items()} if name in {"properties", "$defs"} else _strict(part)
        for name, part in schema.items()
        if name != "default"
    }
    if found.get("type") == "object" and "properties" in found:
        found |= {"required": [*found["properties"]], "additionalProperties": False}
    return found


def _text_of(reply: Any) -> tuple[str | None, str]:  # noqa: ANN401 - any answer of an endpoint
    """Return the text of an answer and "", or None and the reason why the answer has no text."""
    try:
        choice = reply.choices[0]
        content = choice.message.content
    except (AttributeError, IndexError, TypeError):
        return None, "the answer is no chat completion: look at base_url"
    if isinstance(content, str) and content.strip():
        return content, ""
    refusal = getattr(choice.message, "refusal", None)
    return None, f"the model said nothing: {refusal or f'finish_reason {choice.finish_reason!r}'}"


def _first_problem(error: pydantic.ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]


def _retry_after(error: Any) -> float | None:  # noqa: ANN401 - an error of the openai package
    """Return the seconds in an answer's Retry-After header; None if there is no such header, or it has a date."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    text = headers.get("retry-after", "")
    return float(text) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else None


def _checked_url(url: object) -> str:
    if not is_http_address(url):  # the error does not quote the URL, which may hold a password
        raise ConfigError(
            "base_url= (not shown, because it may have a password) is not the address of an endpoint: write http(s)://host:port/v1"
        )
    return str(url)


def _checked_key(key: str | pydantic.SecretStr | None) -> pydantic.SecretStr | None:
    if key is None:
        return None
    secret = key if isinstance(key, pydantic.SecretStr) else pydantic.SecretStr(key if isinstance(key, str) else "")
    if not re.fullmatch(r"[\x21-\x7e]+", secret.get_secret_value()):
        raise ConfigError(
            "api_key= must be a str of ASCII characters without blanks. If api_key= is left out, the variable "
            f"{_KEY} is used"
        )
    return secret
