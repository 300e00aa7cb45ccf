"""Settings: where the server is, and the limits of a messager."""

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from ray_messaging.common.limits import (
    DEAD_BYTES,
    FRAME_BYTES,
    FRAME_ROWS,
    MAILBOX_BYTES,
    MAILBOX_MESSAGES,
    PAYLOAD_LIMIT,
    RULE_TIMEOUT_S,
    TRANSACTION_BYTES,
)
from ray_messaging.errors import ConfigError

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)  # pydantic has no public name for it


class Setting(NamedTuple):
    """Describe a field as people read it."""

    name: str
    kind: str
    default: str
    description: str


class _Legible(ModelMetaclass):
    """Leave pydantic's own members out of `dir` and `help` of a class: they are ten times as long as ours."""

    def __dir__(self) -> list[str]:
        ours = [base for base in self.__mro__ if base not in BaseModel.__mro__]
        return sorted({name for base in ours for name in vars(base) if not name.startswith(("_", "model_"))})


class _Settings(BaseModel, metaclass=_Legible):
    """Name its fields, with their defaults and what they set, in its docstring."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:  # noqa: ANN401 - as BaseModel's
        listed = [f"{each.name} ({each.kind}, {each.default}): {each.description}" for each in settings_of(cls)]
        cls.__doc__ = "\n".join([cls.__doc__ or "", "", *listed])


def settings_of(config: type[BaseModel]) -> Iterator[Setting]:
    """Yield what there is to say of each field: docs/configuration.md has it as a table."""
    for name, field in config.model_fields.items():
        kind = field.annotation.__name__ if isinstance(field.annotation, type) else str(field.annotation)
        default = "required" if field.is_required() else _shown(name, field.default)
        yield Setting(name, kind, default, field.description or "")


def _shown(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if name.endswith("_bytes"):
        return f"{value / 2**20:g} MiB"
    if name.endswith(("_s", "timeout")):
        return f"{value:g} s"
    return str(value) if name == "port" else f"{value:,}"


def _of(default: Any, description: str, **limits: Any) -> Any:  # noqa: ANN401 - a field of any type
    """Build a field from its default and what it sets, with the unit; docs/configuration.md has a row for each."""
    return Field(default, description=description, **limits)


class ServerConfig(_Settings):
    """Address of a server; its class says of which kind, so that the backend is chosen by it."""

    if TYPE_CHECKING:  # each kind describes them on its own
        server: str
        port: int
        password: str | None


class RedisConfig(ServerConfig):
    """Say where the Redis (or Valkey) server is; the repr never shows the password."""

    # An error about another field must not print the password.
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    server: str = Field(description="its host name or address; what begins with / is a unix socket")
    port: int = _of(6379, "its TCP port", ge=0, le=65535)
    password: str | None = _of(None, "its password", repr=False)
    db: int = _of(0, "the number of the database", ge=0)
    timeout: float = _of(60.0, "seconds that one command may take; connecting has 5 s of its own", gt=0)
    username: str | None = _of(None, "the user's name, where the server has an ACL")
    ssl: bool = _of(False, "connect by TLS")
    ssl_ca_certs: str | None = _of(None, "a file of authorities to trust beside the system's")
    ssl_certfile: str | None = _of(None, "a file with our own certificate, where the server asks for one")
    ssl_keyfile: str | None = _of(None, "a file with its key")
    allow_eviction: bool = _of(False, "take a server that deletes data, unread messages too, when its memory is full")
    socket_dir: str | None = _of(None, "a folder with its unix socket, PORT.sock, which is quicker where it is there")

    @model_validator(mode="before")
    @classmethod
    def _name_the_unknown(cls, fields: object) -> object:
        # AgentSociety's users have files with more in them; a typo in `password` must not go unnoticed all the same.
        unknown = sorted(map(str, fields.keys() - cls.model_fields.keys())) if isinstance(fields, dict) else []
        if unknown:
            known = ", ".join(cls.model_fields)
            warnings.warn(f"RedisConfig has no {', '.join(unknown)}, and ignores it: it has {known}", stacklevel=3)
        return fields

    @model_validator(mode="after")
    def _is_whole(self) -> "RedisConfig":
        # Who sets a CA or a key believes that it protects.
        if not self.ssl and (self.ssl_ca_certs or self.ssl_certfile or self.ssl_keyfile):
            raise ValueError("ssl_ca_certs, ssl_certfile and ssl_keyfile need ssl=True")
        if self.ssl_keyfile and not self.ssl_certfile:
            raise ValueError("ssl_keyfile needs ssl_certfile")
        if self.socket_dir is not None and (self.ssl or self.server.startswith("/")):
            raise ValueError("socket_dir stands beside a host and a port, without ssl: write one way to the server")
        return self

    @classmethod
    def from_url(cls, url: str) -> "RedisConfig":
        """Read redis://, rediss:// or unix:// ([user][:password]@host[:port][/db]); raise ConfigError otherwise.

        Behind a question mark: allow_eviction=1, and db=number.
        """
        try:
            parts = urlsplit(url)
        except ValueError:
            raise ConfigError("cannot read the server's address: write redis://[user:password@]host:port/db") from None
        if parts.scheme not in {"redis", "rediss", "unix"}:
            raise ConfigError(
                f"cannot read a server's address with scheme {parts.scheme!r}: "
                "write redis://host:port/db, rediss://host:port/db or unix:///path"
            )
        query = dict(pair.partition("=")[::2] for pair in parts.query.split("&") if pair)
        db = query.get("db", "0") if parts.scheme == "unix" else (parts.path.strip("/") or query.get("db", "0"))
        try:
            return cls(
                server=unquote(parts.path) if parts.scheme == "unix" else (parts.hostname or "localhost"),
                port=0 if parts.scheme == "unix" else (parts.port or 6379),
                password=unquote(parts.password) if parts.password else None,
                username=unquote(parts.username) if parts.username else None,
                db=int(db),
                ssl=parts.scheme == "rediss",
                allow_eviction=TypeAdapter(bool).validate_strings(query.get("allow_eviction", "0")),
            )
        except (ValidationError, ValueError):
            # The cause would show the password.
            raise ConfigError(
                "cannot read the server's address: write redis://[user:password@]host:port/db, with a port of 0 to "
                "65535, a number for db, 0 or 1 for allow_eviction, and / @ : in the password as %2F %40 %3A"
            ) from None


class MqttConfig(ServerConfig):
    """Say where the MQTT broker is; the repr never shows the password."""

    # A typo in `password` must not go unnoticed, and an error about another field must not print it.
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    server: str = Field(description="its host name or address")
    port: int = _of(1883, "its TCP port", ge=1, le=65535)
    username: str | None = _of(None, "the user's name")
    password: str | None = _of(None, "the user's password, which needs a username", repr=False)
    timeout: float = _of(60.0, "seconds that one command may take; connecting has 5 s of its own", gt=0)
    keepalive_s: int = _of(30, "seconds without a word after which a ping is sent, or the peer is gone", ge=1, le=65535)
    ssl: bool = _of(False, "connect by TLS")
    ssl_ca_certs: str | None = _of(None, "a file of the authorities to trust; without it: the system's")
    ssl_certfile: str | None = _of(None, "a file with our own certificate, where the broker asks for one")
    ssl_keyfile: str | None = _of(None, "a file with its key")

    @model_validator(mode="after")
    def _is_whole(self) -> "MqttConfig":
        # paho leaves a lone password out without a word, and a key or a CA of a connection without TLS: who sets one
        # believes that it protects.
        if self.password is not None and self.username is None:
            raise ValueError("a password needs a username")
        if not self.ssl and (self.ssl_ca_certs or self.ssl_certfile or self.ssl_keyfile):
            raise ValueError("ssl_ca_certs, ssl_certfile and ssl_keyfile need ssl=True")
        if self.ssl_keyfile and not self.ssl_certfile:
            raise ValueError("ssl_keyfile needs ssl_certfile")
        return self

    @classmethod
    def from_url(cls, url: str) -> "MqttConfig":
        """Read mqtt:// or mqtts:// ([user[:password]@]host[:port]; mqtts: port 8883); raise ConfigError otherwise."""
        how = "write mqtt://[user:password@]host:port, or mqtts:// for TLS"
        try:
            parts = urlsplit(url)
        except ValueError:
            raise ConfigError(f"cannot read the broker's address: {how}") from None
        if parts.scheme not in {"mqtt", "mqtts"}:
            raise ConfigError(f"cannot read a broker's address with scheme {parts.scheme!r}: {how}")
        default_port = 8883 if parts.scheme == "mqtts" else 1883
        # A password with a raw / or ? in it ends there: what follows it must not go unnoticed.
        more = parts.path.strip("/") + parts.query + parts.fragment
        try:
            return cls(
                server=parts.hostname or "localhost",
                port=-1 if more else default_port if parts.port is None else parts.port,
                username=unquote(parts.username) if parts.username else None,
                password=unquote(parts.password) if parts.password else None,
                ssl=parts.scheme == "mqtts",
            )
        except (ValidationError, ValueError):
            # The cause would show the password.
            raise ConfigError(
                f"cannot read the broker's address: {how}, with a port of 1 to 65535, nothing behind it, a user with a "
                "password, and / @ : in the password as %2F %40 %3A"
            ) from None


class MessagingConfig(_Settings):
    """Set the limits of a messager; sizes in messages or bytes, times in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mailbox_messages: PositiveInt = _of(
        MAILBOX_MESSAGES, "messages that may wait unread in a mailbox; then senders wait"
    )
    mailbox_bytes: PositiveInt = _of(MAILBOX_BYTES, "bytes that may wait unread in a mailbox; then senders wait")
    inbox_messages: PositiveInt = _of(100_000, "messages that a receiver reads ahead of what is fetched")
    outbox_messages: PositiveInt = _of(200_000, "messages that may wait in a messager to be sent; then `send` waits")
    outbox_bytes: PositiveInt = _of(256 * 2**20, "bytes that may wait in a messager to be sent; then `send` waits")
    payload_bytes: int = _of(8 * 2**20, "bytes of one payload as JSON, 64 MiB at most", gt=0, le=PAYLOAD_LIMIT)
    state_bytes: int = _of(64 * 2**20, "bytes of what a transaction keeps, 256 MiB at most", gt=0, le=TRANSACTION_BYTES)
    complete_messages: PositiveInt = _of(1_000_000, "messages that one fetch with `complete=True` hands out at most")
    complete_bytes: PositiveInt = _of(256 * 2**20, "bytes that one fetch with `complete=True` hands out at most")
    frame_rows: PositiveInt = _of(FRAME_ROWS, "messages in one entry of a mailbox; a batch of ours has no more")
    frame_bytes: PositiveInt = _of(FRAME_BYTES, "bytes in one entry of a mailbox")
    send_timeout_s: PositiveFloat = _of(30.0, "seconds that a send goes on trying: no server, no room, no log")
    interceptor_timeout_s: PositiveFloat = _of(30.0, "seconds that a send waits for an interceptor without an answer")
    rule_timeout_s: PositiveFloat = _of(
        RULE_TIMEOUT_S, "seconds at one batch after which a rule has failed, and is interrupted"
    )
    lease_s: PositiveFloat = _of(30.0, "seconds after which a messager that is not heard of counts as gone")
    loan_s: PositiveFloat = _of(60.0, "seconds that a caller over Ray may hold what it fetched; then others get it")
    dead_bytes: PositiveInt = _of(DEAD_BYTES, "bytes of dead letters; beyond it the oldest are dropped, and counted")
    log_list_messages: int = _of(100_000, "messages in the local log list, `get_log_list()`; 0: none", ge=0)
    log_list_bytes: int = _of(64 * 2**20, "bytes in the local log list; 0: none", ge=0)
    mirror: bool = _of(False, "PUBLISH also what mailboxes take, for foreign clients that listen along")
    strict_senders: bool | None = _of(None, "send for one's own agents alone, or the user; None: if it is a group")
    standing_verdicts: bool = _of(True, "let senders apply rules on ids alone; False: each batch is asked about")


OnExisting = Literal["error", "resume", "reset"]
