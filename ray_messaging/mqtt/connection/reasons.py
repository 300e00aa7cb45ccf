"""Our errors for MQTT reason codes and failed connections."""

import ssl
from enum import IntEnum
from typing import TypeVar

from ray_messaging.common.limits import CONNECT_TIMEOUT_S
from ray_messaging.config import MqttConfig
from ray_messaging.errors import ConnectionFailed, Fenced, InvalidAddress, MessagingError, ServerRefused


class Reason(IntEnum):
    """MQTT reason codes that we handle."""

    SUCCESS = 0x00
    NO_MATCHING_SUBSCRIBERS = 0x10
    UNSPECIFIED = 0x80
    UNSUPPORTED_PROTOCOL = 0x84
    BAD_CREDENTIALS = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SESSION_TAKEN_OVER = 0x8E
    BAD_FILTER = 0x8F
    BAD_TOPIC = 0x90
    PACKET_TOO_LARGE = 0x95
    QUOTA_EXCEEDED = 0x97
    QOS_NOT_SUPPORTED = 0x9B
    RATE_EXCEEDED = 0x9F


FAILED = 0x80  # the lowest code that is a failure
NOT_PERMITTED = {Reason.NOT_AUTHORIZED, Reason.BAD_TOPIC}  # of a publication: a retry cannot help

# Temporary: a link tries again.
_TEMPORARY = {
    Reason.UNSPECIFIED,
    Reason.SERVER_UNAVAILABLE,
    Reason.SERVER_BUSY,
    Reason.QUOTA_EXCEEDED,
    Reason.RATE_EXCEEDED,
}
_REMEDIES: dict[int, str] = {
    Reason.UNSUPPORTED_PROTOCOL: "it must speak MQTT 5",
    Reason.BAD_CREDENTIALS: "check user name and password",
    Reason.NOT_AUTHORIZED: "check user name, password and the user's permissions",
    Reason.BANNED: "ask the broker's administrator",
}


_Failure = TypeVar("_Failure", bound=ConnectionFailed)


def where(config: MqttConfig) -> str:
    """Return the broker's address for error messages."""
    return f"{config.server}:{config.port}"


def _failure(kind: type[_Failure], config: MqttConfig, text: str) -> _Failure:
    return kind(text, host=config.server, port=config.port)


def cut(config: MqttConfig, why: str) -> ConnectionFailed:
    """Return the error for a connection that has ended."""
    return _failure(ConnectionFailed, config, f"the connection to the MQTT broker at {where(config)} was cut: {why}")


def unreachable(config: MqttConfig, why: str) -> ConnectionFailed:
    """Return the error for a failed connection attempt."""
    advice = "check that it runs and that host and port are right"
    return _failure(ConnectionFailed, config, f"cannot reach the MQTT broker at {where(config)}: {why}; {advice}")


def not_opened(config: MqttConfig, error: BaseException) -> ConnectionFailed:
    """Return the error for a socket that could not be opened."""
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = f"its certificate is not trusted ({error.verify_message}); check ssl_ca_certs and the host name"
    elif isinstance(error, ssl.SSLError):
        hint = f"TLS failed ({error.reason or error}); does the broker speak TLS on this port?"
    elif config.ssl and isinstance(error, ConnectionResetError):
        hint = "it hung up when we began TLS; does the broker speak TLS on this port?"
    elif isinstance(error, TimeoutError):
        hint = f"no answer within {CONNECT_TIMEOUT_S:.0f} s"
    else:
        hint = str(error) or type(error).__name__
    return unreachable(config, hint)


def unanswered(config: MqttConfig) -> ConnectionFailed:
    """Return the error for a connection that was closed before CONNACK."""
    return unreachable(
        config, "it closed the connection before it answered; it may need TLS (ssl=True), or a client certificate"
    )


def refused(config: MqttConfig, code: int, text: str) -> ConnectionFailed:
    """Return the error for a refused CONNECT: ServerRefused if trying again cannot help."""
    if code in _TEMPORARY:
        return unreachable(config, f"it answered {text} (0x{code:02X})")
    remedy = _REMEDIES.get(code, "see the broker's log")
    why = f"refused us (user {config.username!r}): {text} (0x{code:02X}); {remedy}"
    return _failure(ServerRefused, config, f"the MQTT broker at {where(config)} {why}")


def disconnected(config: MqttConfig, client_id: str, code: int, text: str) -> MessagingError:
    """Return the error for the broker's DISCONNECT."""
    if code == Reason.SESSION_TAKEN_OVER:
        return Fenced(
            f"another client connected to the MQTT broker at {where(config)} as {client_id!r} and took over the "
            "session; give each messager its own name",
            name=client_id,
            epoch=0,
        )
    return cut(config, f"{text} (0x{code:02X})")


def not_subscribed(config: MqttConfig, filter_: str, code: int, text: str) -> MessagingError:
    """Return the error for a refused subscription."""
    if code == Reason.BAD_FILTER:
        return InvalidAddress(
            f"the MQTT broker at {where(config)} cannot subscribe us to {filter_!r}: {text}", value=filter_
        )
    return _failure(
        ServerRefused,
        config,
        f"the MQTT broker at {where(config)} refused the subscription to {filter_!r} (user {config.username!r}): "
        f"{text} (0x{code:02X}); check the user's permissions and the broker's limits",
    )


def not_published(config: MqttConfig, topic: str, code: int) -> ServerRefused:
    """Return the error for a publication that the broker refused."""
    why = "not authorized" if code == Reason.NOT_AUTHORIZED else "refused"
    return _failure(
        ServerRefused,
        config,
        f"the MQTT broker at {where(config)} took no publication on {topic!r} from user {config.username!r}: {why} "
        f"(0x{code:02X}); let that user publish and subscribe below ray_messaging/ and on the topics it uses",
    )


def unconfirmed(config: MqttConfig, count: int, timeout_s: float) -> ConnectionFailed:
    """Return the error for publications that the broker did not confirm in time."""
    text = f"did not confirm {count} frames within {timeout_s:g} s: check that it runs"
    return _failure(ConnectionFailed, config, f"the MQTT broker at {where(config)} {text}")
