"""The settings of an MQTT broker, from AgentSociety's arguments or from an MqttConfig."""

from pydantic import ConfigDict, Field, ValidationError, model_validator

from ray_messaging.config import ServerConfig
from ray_messaging.errors import ConfigError

PORT, TIMEOUT_S = 1883, 60


class MqttConfig(ServerConfig):
    """The address of an MQTT broker, and how to connect to it. The repr never shows the password."""

    # Unknown fields are errors, so that a typo in `password` is noticed. Errors about other fields do not show the
    # password.
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    server: str = Field(description="the broker's host name or address")
    port: int = Field(1883, description="the broker's TCP port", ge=1, le=65535)
    username: str | None = Field(None, description="the user's name")
    password: str | None = Field(None, description="the user's password, which needs a username", repr=False)
    timeout: float = Field(60.0, description="seconds that one command may take; connecting may take 5 s", gt=0)
    keepalive_s: int = Field(
        30,
        description="seconds of silence before a ping is sent, and until a broker that does not answer counts as gone",
        ge=1,
        le=65535,
    )
    ssl: bool = Field(False, description="connect by TLS")
    ssl_ca_certs: str | None = Field(
        None, description="a file of certificate authorities to trust; None: those of the system"
    )
    ssl_certfile: str | None = Field(
        None, description="a file with the client's certificate, if the broker asks for one"
    )
    ssl_keyfile: str | None = Field(None, description="a file with the private key of the client's certificate")

    @model_validator(mode="after")
    def _is_whole(self) -> "MqttConfig":
        if "://" in self.server:  # the error does not show the URL, which may have a password
            raise ValueError(
                "the host is a URL: write only the host's name, and pass port, username, password and ssl as separate "
                "settings"
            )
        # paho silently ignores a password without a username, and a key or a CA without TLS.
        if self.password is not None and self.username is None:
            raise ValueError("a password needs a username")
        if not self.ssl and (self.ssl_ca_certs or self.ssl_certfile or self.ssl_keyfile):
            raise ValueError("ssl_ca_certs, ssl_certfile and ssl_keyfile need ssl=True")
        if self.ssl_keyfile and not self.ssl_certfile:
            raise ValueError("ssl_keyfile needs ssl_certfile")
        return self


def broker_config(
    hostname: object, port: int, username: str | None, password: str | None, timeout: float
) -> MqttConfig:
    """Return the config of a broker; raise ConfigError, without the password in it, if the arguments are invalid."""
    if isinstance(hostname, MqttConfig):
        if (port, username, password, timeout) != (PORT, None, None, TIMEOUT_S):
            raise ConfigError(
                "port, username, password and timeout cannot be passed next to an MqttConfig: set them in that config"
            )
        return hostname
    try:
        return MqttConfig.model_validate(
            {
                "server": hostname,
                "port": port,
                "username": username,
                # As in paho, an empty password without a username counts as no password: settings files often have one.
                "password": None if username is None and password == "" else password,
                "timeout": timeout,
            }
        )
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, each['loc'])).replace('server', 'hostname') or 'the broker'}: {each['msg']}"
            for each in error.errors(include_input=False, include_url=False, include_context=False)
        )
        raise ConfigError(f"these settings of an MQTT broker are not valid: {problems}") from None
