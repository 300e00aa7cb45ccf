"""A model behind an OpenAI-compatible endpoint."""

import asyncio
import importlib
import os
import re
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from pydantic import SecretStr

from ray_messaging.errors import ConfigError, ConnectionFailed, RuleError

MISSING = "OpenAIModerator needs the openai package: pip install 'ray-messaging[llm]'"
_ENV_KEY = "OPENAI_API_KEY"
_ERROR_CHARS = 500  # kept of an endpoint's error text

_SCHEMA = {
    "type": "object",
    "properties": {"allow": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["allow", "reason"],
    "additionalProperties": False,
}
# Response formats, strictest first; after a refusal the next one is tried.
_FORMATS: tuple[dict[str, Any], ...] = (
    {"response_format": {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": _SCHEMA}}},
    {"response_format": {"type": "json_object"}},
    {},
)


class _Form(NamedTuple):
    """The form of a request: an index into _FORMATS, and whether it sets temperature 0 (some models refuse that)."""

    format: int
    temperature: bool


class Endpoint:
    """The connection to one model; its client is created on first use, and does not travel with the rule."""

    def __init__(
        self, model: str, base_url: str | None, api_key: SecretStr | None, retries: int, options: dict[str, Any]
    ) -> None:
        self.model = model
        self.retries = retries
        self._base_url = base_url
        self._api_key = api_key
        self._options = options
        self._reset()

    def _reset(self) -> None:
        self.usage = {"requests": 0, "prompt_tokens": 0, "completion_tokens": 0}
        self._client: Any = None
        self._opening = asyncio.Lock()
        self._form = _Form(0 if "response_format" not in self._options else 2, "temperature" not in self._options)
        self._worked = False

    def __getstate__(self) -> dict[str, Any]:
        kept = ("model", "retries", "_base_url", "_api_key", "_options")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    @property
    def address(self) -> str:
        """Return the endpoint's address, without user and password."""
        if self._base_url is None:
            return "the default of the openai package"
        parts = urlsplit(self._base_url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    async def ask(self, messages: list[dict[str, str]]) -> str:
        """Return the model's answer; raise an error that says how to fix it, and never contains the key."""
        try:
            reply = await self._complete(await self._opened(), messages)
        except Exception as error:  # noqa: BLE001 - each is translated
            # Without its cause, which may contain the key, as may its text.
            raise self._translated(error) from None
        self._count(reply)
        return _content(reply)

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _opened(self) -> Any:  # noqa: ANN401 - openai is optional
        async with self._opening:
            if self._client is None:
                # In a thread: the import takes a second, and must not block other messages.
                self._client = await asyncio.to_thread(self._open)
            return self._client

    def _open(self) -> Any:  # noqa: ANN401 - openai is optional
        try:
            openai: Any = importlib.import_module("openai")
        except ImportError:
            raise ConfigError(MISSING) from None
        key = self._key()
        if key is None and self._base_url is None:
            raise ConfigError(f"there is no API key: pass api_key, or set {_ENV_KEY} where the interceptor runs")
        # The moderator's timeout bounds all attempts together.
        client = openai.AsyncOpenAI(
            api_key=key or "none", base_url=self._base_url, max_retries=self.retries, timeout=None
        )
        _ = client.chat.completions  # imports the other half of openai now, in this thread
        return client

    def _key(self) -> str | None:
        return os.environ.get(_ENV_KEY) if self._api_key is None else self._api_key.get_secret_value()

    async def _complete(self, client: Any, messages: list[dict[str, str]]) -> Any:  # noqa: ANN401 - openai is optional
        form = self._form
        while True:
            request = {"model": self.model, "messages": messages, **_FORMATS[form.format]}
            if form.temperature:
                request["temperature"] = 0
            try:
                reply = await client.chat.completions.create(**{**request, **self._options})
            except Exception as error:
                milder = self._milder(form, error)
                if milder is None:
                    raise
                form = milder
            else:
                self._form, self._worked = form, True
                return reply

    def _milder(self, form: _Form, error: Exception) -> _Form | None:
        """Return a milder form for a refused request; None if its form was not the reason."""
        if getattr(error, "status_code", None) not in {400, 422}:
            return None
        text = str(error).lower()
        if form.temperature and "temperature" in text:
            return form._replace(temperature=False)
        if form.format + 1 < len(_FORMATS) and (not self._worked or "response_format" in text or "json" in text):
            return form._replace(format=form.format + 1)
        return None

    def _count(self, reply: object) -> None:
        self.usage["requests"] += 1
        usage = getattr(reply, "usage", None)
        for name in ("prompt_tokens", "completion_tokens"):
            tokens = getattr(usage, name, None)
            self.usage[name] += tokens if isinstance(tokens, int) else 0

    def _translated(self, error: Exception) -> Exception:
        if isinstance(error, ConfigError):
            return error
        status = getattr(error, "status_code", None)
        text = self._without_key(str(error))[:_ERROR_CHARS]
        if status in {401, 403}:
            return ConfigError(
                f"{self.address} refuses the API key ({status}): pass a valid api_key, or set {_ENV_KEY} where the "
                "interceptor runs"
            )
        if status == 404:
            return ConfigError(f"{self.address} knows no such page or model as {self.model!r} (404): {text}")
        if status is not None:
            return RuntimeError(f"{self.address} answered {status}: {text}")
        if type(error).__name__ == "APIConnectionError":
            cause = self._without_key(str(error.__cause__ or error))
            parts = urlsplit(self._base_url or "https://api.openai.com")
            port = parts.port or (443 if parts.scheme == "https" else 80)
            return ConnectionFailed(f"cannot reach {self.address}: {cause}", host=parts.hostname, port=port)
        return RuntimeError(f"asking {self.address} failed: {type(error).__name__}: {text}")

    def _without_key(self, text: str) -> str:
        key = self._key()
        return text.replace(key, "***") if key else text


def _content(reply: Any) -> str:  # noqa: ANN401 - any answer of an endpoint
    try:
        choice = reply.choices[0]
        content = choice.message.content
    except (AttributeError, IndexError, TypeError):
        raise ValueError("the endpoint's answer is no chat completion: look at base_url") from None
    if not isinstance(content, str) or not content.strip():
        why = getattr(choice.message, "refusal", None) or f"finish_reason {getattr(choice, 'finish_reason', None)!r}"
        raise ValueError(f"the model said nothing: {why}")
    return content


def check_url(url: object, rule: str) -> str | None:
    """Return an endpoint's address; raise RuleError if it is none."""
    if url is None:
        return None
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        fine = parts.scheme in {"http", "https"} and parts.hostname and (parts.port is None or parts.port)
    except ValueError:
        fine = False
    if not fine:  # not quoted: it may hold a password
        raise RuleError("base_url is no address of an endpoint: write http(s)://host:port/v1", rule=rule)
    return str(url)


def check_key(key: object, rule: str) -> SecretStr | None:
    """Return an API key that no text shows; raise RuleError if it is none."""
    if key is None:
        return None
    secret = key if isinstance(key, SecretStr) else SecretStr(key if isinstance(key, str) else "")
    if not re.fullmatch(r"[\x21-\x7e]+", secret.get_secret_value()):
        raise RuleError(f"api_key must be a text without blanks; leave it out to use {_ENV_KEY}", rule=rule)
    return secret
