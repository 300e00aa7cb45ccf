"""Durable, filtered, logged messaging between millions of agents on a Ray cluster."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ray_messaging.cluster.handles.group import Group
from ray_messaging.cluster.messaging import Messaging
from ray_messaging.compat.msg import Msg
from ray_messaging.config import MessagingConfig, MqttConfig, RedisConfig
from ray_messaging.errors import (
    AlreadyExists,
    Closed,
    CommitFailed,
    ConfigError,
    ConnectionFailed,
    Fenced,
    FetchTooLarge,
    FrameError,
    InterceptorUnavailable,
    InvalidAddress,
    InvalidColumns,
    InvalidMsg,
    InvalidPayload,
    InvalidQuery,
    LogError,
    MailboxFull,
    MessagingError,
    NotListening,
    OutcomeUnknown,
    PayloadTooLarge,
    RuleError,
    ServerFailed,
    ServerRefused,
    TraceError,
    TransactionError,
    TransitError,
    Unbalanced,
    UnknownName,
    UnknownSender,
)
from ray_messaging.interception import rules
from ray_messaging.interception.rules import Rule
from ray_messaging.message import Message, Outgoing
from ray_messaging.messager import Messager
from ray_messaging.messages import Messages
from ray_messaging.observability import Finding, Health
from ray_messaging.receipt import Receipt, Receipts

if TYPE_CHECKING:
    from ray_messaging.cluster.handles.blocked import BlockedListener, BlockedMessage
    from ray_messaging.eventlog.event_log import EventLog
    from ray_messaging.eventlog.reading.event_rows import LogRow

# They bring pyarrow along, which takes 80 MB: a group's process does without.
_ON_FIRST_USE = {
    "BlockedListener": "ray_messaging.cluster.handles.blocked",
    "BlockedMessage": "ray_messaging.cluster.handles.blocked",
    "EventLog": "ray_messaging.eventlog.event_log",
    "LogRow": "ray_messaging.eventlog.reading.event_rows",
}

__all__ = [
    "AlreadyExists",
    "BlockedListener",
    "BlockedMessage",
    "Closed",
    "CommitFailed",
    "ConfigError",
    "ConnectionFailed",
    "EventLog",
    "Fenced",
    "FetchTooLarge",
    "Finding",
    "FrameError",
    "Group",
    "Health",
    "InterceptorUnavailable",
    "InvalidAddress",
    "InvalidColumns",
    "InvalidMsg",
    "InvalidPayload",
    "InvalidQuery",
    "LogError",
    "LogRow",
    "MailboxFull",
    "Message",
    "Messager",
    "Messages",
    "Messaging",
    "MessagingConfig",
    "MessagingError",
    "MqttConfig",
    "Msg",
    "NotListening",
    "OutcomeUnknown",
    "Outgoing",
    "PayloadTooLarge",
    "Receipt",
    "Receipts",
    "RedisConfig",
    "Rule",
    "RuleError",
    "ServerFailed",
    "ServerRefused",
    "TraceError",
    "TransactionError",
    "TransitError",
    "Unbalanced",
    "UnknownName",
    "UnknownSender",
    "rules",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a module's
    if name == "mqtt":  # a module, and an extra's
        return import_module("ray_messaging.mqtt")
    if name in _ON_FIRST_USE:
        return getattr(import_module(_ON_FIRST_USE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
