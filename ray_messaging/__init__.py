"""Durable, filtered, logged messaging between millions of agents on a Ray cluster."""

from ray_messaging.cluster.group import Group
from ray_messaging.cluster.messaging import Messaging
from ray_messaging.config import MessagingConfig, RedisConfig
from ray_messaging.errors import (
    AlreadyExists,
    Closed,
    ConfigError,
    ConnectionFailed,
    Fenced,
    FrameError,
    InterceptorUnavailable,
    InvalidAddress,
    InvalidColumns,
    InvalidPayload,
    MailboxFull,
    MessagingError,
    NotListening,
    OutcomeUnknown,
    PayloadTooLarge,
    RuleError,
    ServerFailed,
    ServerRefused,
    TraceError,
    TransitError,
    UnknownName,
)
from ray_messaging.interception import rules
from ray_messaging.interception.rules import Rule
from ray_messaging.message import Message, Outgoing
from ray_messaging.messager import Messager
from ray_messaging.messages import Messages
from ray_messaging.receipt import Receipt, Receipts

__all__ = [
    "AlreadyExists",
    "Closed",
    "ConfigError",
    "ConnectionFailed",
    "Fenced",
    "FrameError",
    "Group",
    "InterceptorUnavailable",
    "InvalidAddress",
    "InvalidColumns",
    "InvalidPayload",
    "MailboxFull",
    "Message",
    "Messager",
    "Messages",
    "Messaging",
    "MessagingConfig",
    "MessagingError",
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
    "TransitError",
    "UnknownName",
    "rules",
]
