"""The broker's config, from AgentSociety's arguments or ours."""

from pydantic import ValidationError

from ray_messaging.config import MqttConfig
from ray_messaging.errors import ConfigError

PORT, TIMEOUT_S = 1883, 60


def broker_config(
    hostname: object, port: int, username: str | None, password: str | None, timeout: float
) -> MqttConfig:
    """Return the config of a broker; raise ConfigError, without the password."""
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
                # In settings files an empty password often means none, as in paho.
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
