"""Settings: where the server is, and the limits of a messager."""

from typing import Literal
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError

from ray_messaging.errors import ConfigError

CONNECT_TIMEOUT_S = 5.0


class RedisConfig(BaseModel):
    """Say where the Redis (or Valkey) server is; the repr never shows the password.

    `timeout` (s) bounds a command; connecting has its own 5 s. A `server` that begins with `/` is a unix socket.
    """

    # A typo in `password` must not go unnoticed, and an error about another field must not print it.
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    server: str
    port: int = Field(default=6379, ge=0, le=65535)
    password: str | None = Field(default=None, repr=False)
    db: int = Field(default=0, ge=0)
    timeout: float = Field(default=60.0, gt=0)
    username: str | None = None
    ssl: bool = False
    ssl_ca_certs: str | None = None

    @classmethod
    def from_url(cls, url: str) -> "RedisConfig":
        """Read redis://, rediss:// or unix:// ([user][:password]@host[:port][/db]); raise ConfigError otherwise."""
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
            )
        except (ValidationError, ValueError):
            # The cause would show the password.
            raise ConfigError(
                "cannot read the server's address: write redis://[user:password@]host:port/db, with a port of 0 to "
                "65535, a number for db, and / @ : in the password as %2F %40 %3A"
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
    frame_rows: PositiveInt = 4096
    frame_bytes: PositiveInt = 16 * 2**20
    send_timeout_s: PositiveFloat = 30.0
    interceptor_timeout_s: PositiveFloat = 30.0
    rule_timeout_s: PositiveFloat = 10.0  # a rule that takes longer for a batch has failed on it, and is interrupted
    lease_s: PositiveFloat = 30.0
    loan_s: PositiveFloat = 60.0  # what a caller over Ray holds uncommitted for longer goes to the next one
    log_list_messages: int = Field(default=100_000, ge=0)
    log_list_bytes: int = Field(default=64 * 2**20, ge=0)
    mirror: bool = False


OnExisting = Literal["error", "resume", "reset"]
