"""Turn MQTT's reason codes, and what a connection attempt raises, into our errors."""

import ssl
from enum import IntEnum

from ray_messaging.common.limits import CONNECT_TIMEOUT_S
from ray_messaging.config import MqttConfig
from ray_messaging.errors import ConnectionFailed, Fenced, InvalidAddress, MessagingError, ServerRefused


class Reason(IntEnum):
    """Name the reason codes on which something hangs."""

    SUCCESS = 0x00
    NO_MATCHING_SUBSCRIBERS = 0x10
    UNSPECIFIED = 0x80
    UNSUPPORTED_PROTOCOL = 0x84
    BAD_CLIENT_ID = 0x85
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


FAILED = 0x80  # a code from here on is a failure

# These end by themselves, so a link goes on trying.
_PASSING = {
    Reason.UNSPECIFIED,
    Reason.SERVER_UNAVAILABLE,
    Reason.SERVER_BUSY,
    Reason.QUOTA_EXCEEDED,
    Reason.RATE_EXCEEDED,
}
_REMEDIES = {
    Reason.UNSUPPORTED_PROTOCOL: "it must speak MQTT 5",
    Reason.BAD_CREDENTIALS: "check user name and password",
    Reason.NOT_AUTHORIZED: "check user name, password, and the user's rights",
    Reason.BANNED: "ask who runs the broker",
}


def where(config: MqttConfig) -> str:
    """Name the broker in messages."""
    return f"{config.server}:{config.port}"


def cut(config: MqttConfig, why: str) -> ConnectionFailed:
    """Make the error of a connection that has ended."""
    return ConnectionFailed(
        f"the connection to the MQTT broker at {where(config)} was cut: {why}", host=config.server, port=config.port
    )


def unreachable(config: MqttConfig, why: str) -> ConnectionFailed:
    """Make the error of a connection that did not come about."""
    return ConnectionFailed(
        f"cannot reach the MQTT broker at {where(config)}: {why}; check that it runs and that host and port are right",
        host=config.server,
        port=config.port,
    )


def not_opened(config: MqttConfig, error: BaseException) -> ConnectionFailed:
    """Say why no socket was opened."""
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = f"its certificate is not to be trusted ({error.verify_message}); check ssl_ca_certs and the host's name"
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
    """Make the error of a connection that was taken, and cut before CONNACK."""
    return unreachable(
        config, "it closed the connection before it had answered; it may want TLS (ssl=True), or a certificate of ours"
    )


def refused(config: MqttConfig, code: int, text: str) -> ConnectionFailed:
    """Turn the code of a refused CONNECT into an error: ServerRefused where trying again cannot help."""
    if code in _PASSING:
        return unreachable(config, f"it answered {text} (0x{code:02X})")
    remedy = next((hint for reason, hint in _REMEDIES.items() if reason == code), "see the broker's log")
    return ServerRefused(
        f"the MQTT broker at {where(config)} refused us (user {config.username!r}): {text} (0x{code:02X}); {remedy}",
        host=config.server,
        port=config.port,
    )


def disconnected(config: MqttConfig, client_id: str, code: int, text: str) -> MessagingError:
    """Turn the code of the broker's DISCONNECT into an error."""
    if code == Reason.SESSION_TAKEN_OVER:
        return Fenced(
            f"somebody else has connected to the MQTT broker at {where(config)} as {client_id!r} and has taken over "
            "the session; give each messager a name of its own",
            name=client_id,
            epoch=0,
        )
    return cut(config, f"{text} (0x{code:02X})")


def not_subscribed(config: MqttConfig, filter_: str, code: int, text: str) -> MessagingError:
    """Turn the code of a refused subscription into an error."""
    if code == Reason.BAD_FILTER:
        return InvalidAddress(
            f"the MQTT broker at {where(config)} cannot subscribe us to {filter_!r}: {text}", value=filter_
        )
    return ServerRefused(
        f"the MQTT broker at {where(config)} refused the subscription to {filter_!r} (user {config.username!r}): "
        f"{text} (0x{code:02X}); check the user's rights and the broker's limits",
        host=config.server,
        port=config.port,
    )
