"""Address of an MQTT broker, given by AgentSociety's arguments or by ours."""

from urllib.parse import unquote, urlsplit

from pydantic import ConfigDict, Field, ValidationError, model_validator

from ray_messaging.config import ServerConfig
from ray_messaging.errors import ConfigError

PORT, TIMEOUT_S = 1883, 60


class MqttConfig(ServerConfig):
    """Address of the MQTT broker; the repr never shows the password."""

    # A typo in `password` must not go unnoticed, and an error about another field must not print it.
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    server: str = Field(description="its host name or address")
    port: int = Field(1883, description="its TCP port", ge=1, le=65535)
    username: str | None = Field(None, description="the user's name")
    password: str | None = Field(None, description="the user's password, which needs a username", repr=False)
    timeout: float = Field(60.0, description="seconds that one command may take; connecting has 5 s of its own", gt=0)
    keepalive_s: int = Field(
        30, description="seconds of silence before a ping, and until the peer is gone", ge=1, le=65535
    )
    ssl: bool = Field(False, description="connect by TLS")
    ssl_ca_certs: str | None = Field(None, description="a file of the authorities to trust; without it: the system's")
    ssl_certfile: str | None = Field(None, description="a file with our own certificate, where the broker asks for one")
    ssl_keyfile: str | None = Field(None, description="a file with its key")

    @model_validator(mode="after")
    def _is_whole(self) -> "MqttConfig":
        # paho silently ignores a password without a username, and a key or a CA without TLS.
        if self.password is not None and self.username is None:
            raise ValueError("a password needs a username")
        if not self.ssl and (self.ssl_ca_certs or self.ssl_certfile or self.ssl_keyfile):
            raise ValueError("ssl_ca_certs, ssl_certfile and ssl_keyfile need ssl=True")
        if self.ssl_keyfile and not self.ssl_certfile:
            raise ValueError("ssl_keyfile needs ssl_certfile")
        return self

    @classmethod
    def from_url(cls, url: str) -> "MqttConfig":
        """Parse mqtt:// or mqtts:// (`[user[:password]@]host[:port]`); raise ConfigError if it is invalid.

        The default port is 1883, or 8883 for mqtts.
        """
        how = "write mqtt://[user:password@]host:port, or mqtts:// for TLS"
        try:
            parts = urlsplit(url)
        except ValueError:
            raise ConfigError(f"invalid broker address: {how}") from None
        if parts.scheme not in {"mqtt", "mqtts"}:
            raise ConfigError(f"invalid broker address, its scheme is {parts.scheme!r}: {how}")
        default_port = 8883 if parts.scheme == "mqtts" else 1883
        # An unescaped / ? or # in a password ends the password. Do not ignore the rest.
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
                f"invalid broker address: {how}, with a port of 1 to 65535 at the end, a user with each "
                "password, and / @ : in the password as %2F %40 %3A"
            ) from None


def broker_config(
    hostname: object, port: int, username: str | None, password: str | None, timeout: float
) -> MqttConfig:
    """Return the config of a broker; raise ConfigError, without the password in it, if the arguments are invalid."""
    if isinstance(hostname, MqttConfig) or (isinstance(hostname, str) and "://" in hostname):
        if (port, username, password, timeout) != (PORT, None, None, TIMEOUT_S):
            raise ConfigError(
                f"a{'n MqttConfig' if isinstance(hostname, MqttConfig) else ' URL'} holds all settings of a broker: "
                "put port, username, password and timeout there"
            )
        return hostname if isinstance(hostname, MqttConfig) else MqttConfig.from_url(hostname)
    try:
        return MqttConfig.model_validate(
            {
                "server": hostname,
                "port": port,
                "username": username,
                # In settings files an empty password often means no password, as in paho.
                "password": None if username is None and password == "" else password,
                "timeout": timeout,
            }
        )
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, each['loc'])).replace('server', 'hostname') or 'the broker'}: {each['msg']}"
            for each in error.errors(include_input=False, include_url=False, include_context=False)
        )
        raise ConfigError(f"these settings of an MQTT broker cannot work: {problems}") from None
