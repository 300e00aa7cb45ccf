"""Settings: where the server is, and the limits of a messager."""

import warnings
from typing import Literal
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

from ray_messaging.errors import ConfigError

CONNECT_TIMEOUT_S = 5.0


class RedisConfig(BaseModel):
    """Say where the Redis (or Valkey) server is; the repr never shows the password.

    `timeout` (s) bounds a command; connecting has its own 5 s. A `server` that begins with `/` is a unix socket.
    `ssl_ca_certs` is a file of authorities to trust beside the system's; `ssl_certfile` and `ssl_keyfile` are our own
    certificate, where the server asks for one. With `allow_eviction` a server is taken that deletes data, unread
    messages among them, when its memory is full. In `socket_dir` the server has a unix socket, `<port>.sock`: whoever
    finds it there, on the server's own machine, takes it, as it is quicker; everybody else takes the network.
    """

    # An error about another field must not print the password.
    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True)

    server: str
    port: int = Field(default=6379, ge=0, le=65535)
    password: str | None = Field(default=None, repr=False)
    db: int = Field(default=0, ge=0)
    timeout: float = Field(default=60.0, gt=0)
    username: str | None = None
    ssl: bool = False
    ssl_ca_certs: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    allow_eviction: bool = False
    socket_dir: str | None = None

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


class MqttConfig(BaseModel):
    """Say where the MQTT broker is; the repr never shows the password.

    `timeout` (s) bounds a command; connecting has its own 5 s. `ssl_ca_certs` is a file of the authorities to trust
    (without it: the system's); `ssl_certfile` and `ssl_keyfile` are our own certificate, where the broker asks for one.
    """

    # A typo in `password` must not go unnoticed, and an error about another field must not print it.
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    server: str
    port: int = Field(default=1883, ge=1, le=65535)
    username: str | None = None
    password: str | None = Field(default=None, repr=False)
    timeout: float = Field(default=60.0, gt=0)
    keepalive_s: int = Field(default=30, ge=1, le=65535)
    ssl: bool = False
    ssl_ca_certs: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None

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


class MessagingConfig(BaseModel):
    """Set the limits of a messager; sizes in messages or bytes, times in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mailbox_messages: PositiveInt = 1_000_000
    mailbox_bytes: PositiveInt = 256 * 2**20
    inbox_messages: PositiveInt = 100_000
    outbox_messages: PositiveInt = 200_000
    outbox_bytes: PositiveInt = 256 * 2**20
    payload_bytes: int = Field(default=8 * 2**20, gt=0, le=64 * 2**20)
    state_bytes: int = Field(default=64 * 2**20, gt=0, le=256 * 2**20)  # of what transactions keep
    frame_rows: PositiveInt = 16_384  # a whole batch, so that nobody need cut it
    frame_bytes: PositiveInt = 16 * 2**20
    send_timeout_s: PositiveFloat = 30.0
    interceptor_timeout_s: PositiveFloat = 30.0
    rule_timeout_s: PositiveFloat = 10.0  # a rule that takes longer for a batch has failed on it, and is interrupted
    lease_s: PositiveFloat = 30.0
    loan_s: PositiveFloat = 60.0  # what a caller over Ray holds uncommitted for longer goes to the next one
    dead_bytes: PositiveInt = 256 * 2**20  # of dead letters; the oldest are dropped, and counted
    log_list_messages: int = Field(default=100_000, ge=0)
    log_list_bytes: int = Field(default=64 * 2**20, ge=0)
    mirror: bool = False
    standing_verdicts: bool = True  # senders may apply rules that look at ids alone; False: each batch is asked


OnExisting = Literal["error", "resume", "reset"]
