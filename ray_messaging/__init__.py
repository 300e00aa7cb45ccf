"""Durable, filtered, logged messaging between millions of agents on a Ray cluster."""

import sys
from typing import TYPE_CHECKING

from ray_messaging import errors
from ray_messaging.common.lazy_names import resolve
from ray_messaging.errors import MessagingError

if TYPE_CHECKING:
    from ray_messaging.addressing.channels import id_tuple
    from ray_messaging.cluster.handles.audience import Audience
    from ray_messaging.cluster.handles.group.async_group import AsyncGroup
    from ray_messaging.cluster.handles.group.group import Group
    from ray_messaging.cluster.handles.remote_log import BlockedListener, BlockedMessage
    from ray_messaging.cluster.handles.survey import Survey
    from ray_messaging.cluster.inspector_process import Inspector
    from ray_messaging.cluster.messaging import Messaging
    from ray_messaging.cluster.run.agent import Agent
    from ray_messaging.cluster.run.crowd import Crowd
    from ray_messaging.cluster.run.local_run import run
    from ray_messaging.cluster.run.result import Result
    from ray_messaging.cluster.run.run import Run
    from ray_messaging.compat.msg import Msg
    from ray_messaging.config import Calls, MessagingConfig, Price, RedisConfig, Steps
    from ray_messaging.conversations.answer_stream import Answers, GroupAnswers
    from ray_messaging.embedded.local_server import LocalServer
    from ray_messaging.eventlog.comparison import compare
    from ray_messaging.eventlog.event_log import EventLog
    from ray_messaging.eventlog.reading.event_rows import LogRow
    from ray_messaging.interception import rules
    from ray_messaging.interception.rules.rule import Rule
    from ray_messaging.message import Message
    from ray_messaging.messager import Messager
    from ray_messaging.messages import Messages
    from ray_messaging.model.aggregates import Count, Gini, Max, Mean, Min, Quantile, Share, Sum
    from ray_messaging.model.call_content import by_content
    from ray_messaging.model.call_usage import report_usage
    from ray_messaging.model.collect import Of
    from ray_messaging.model.lattice import grid
    from ray_messaging.model.typed.input import columns
    from ray_messaging.observability.health.findings import Finding, Health
    from ray_messaging.observability.tracing.settings import Tracing
    from ray_messaging.outgoing import Outgoing
    from ray_messaging.receipt import Receipt, Receipts
    from ray_messaging.steps.step import Step
    from ray_messaging.studies.batch_run import batch_run
    from ray_messaging.studies.study import Study

    __version__: str

# The module of a name is imported when the name is first used. A process thus loads only what it needs: `errors` is
# imported without Ray, and a group without pyarrow (80 MB). Type checkers read the imports above.
_MODULES = {"models": "ray_messaging.models", "rules": "ray_messaging.interception.rules"}
_HOMES = {
    "Agent": "ray_messaging.cluster.run.agent",
    "Answers": "ray_messaging.conversations.answer_stream",
    "AsyncGroup": "ray_messaging.cluster.handles.group.async_group",
    "Audience": "ray_messaging.cluster.handles.audience",
    "BlockedListener": "ray_messaging.cluster.handles.remote_log",
    "BlockedMessage": "ray_messaging.cluster.handles.remote_log",
    "Calls": "ray_messaging.config",
    "Count": "ray_messaging.model.aggregates",
    "Crowd": "ray_messaging.cluster.run.crowd",
    "EventLog": "ray_messaging.eventlog.event_log",
    "Finding": "ray_messaging.observability.health.findings",
    "Gini": "ray_messaging.model.aggregates",
    "Group": "ray_messaging.cluster.handles.group.group",
    "GroupAnswers": "ray_messaging.conversations.answer_stream",
    "Health": "ray_messaging.observability.health.findings",
    "Inspector": "ray_messaging.cluster.inspector_process",
    "LocalServer": "ray_messaging.embedded.local_server",
    "LogRow": "ray_messaging.eventlog.reading.event_rows",
    "Max": "ray_messaging.model.aggregates",
    "Mean": "ray_messaging.model.aggregates",
    "Message": "ray_messaging.message",
    "Messager": "ray_messaging.messager",
    "Messages": "ray_messaging.messages",
    "Messaging": "ray_messaging.cluster.messaging",
    "MessagingConfig": "ray_messaging.config",
    "Min": "ray_messaging.model.aggregates",
    "Msg": "ray_messaging.compat.msg",
    "Of": "ray_messaging.model.collect",
    "Outgoing": "ray_messaging.outgoing",
    "Price": "ray_messaging.config",
    "Quantile": "ray_messaging.model.aggregates",
    "Receipt": "ray_messaging.receipt",
    "Receipts": "ray_messaging.receipt",
    "RedisConfig": "ray_messaging.config",
    "Result": "ray_messaging.cluster.run.result",
    "Rule": "ray_messaging.interception.rules.rule",
    "Run": "ray_messaging.cluster.run.run",
    "Share": "ray_messaging.model.aggregates",
    "Step": "ray_messaging.steps.step",
    "Steps": "ray_messaging.config",
    "Study": "ray_messaging.studies.study",
    "Sum": "ray_messaging.model.aggregates",
    "Survey": "ray_messaging.cluster.handles.survey",
    "Tracing": "ray_messaging.observability.tracing.settings",
    "batch_run": "ray_messaging.studies.batch_run",
    "by_content": "ray_messaging.model.call_content",
    "columns": "ray_messaging.model.typed.input",
    "compare": "ray_messaging.eventlog.comparison",
    "grid": "ray_messaging.model.lattice",
    "id_tuple": "ray_messaging.addressing.channels",
    "report_usage": "ray_messaging.model.call_usage",
    "run": "ray_messaging.cluster.run.local_run",
}

__all__ = [
    "Agent",
    "Answers",
    "AsyncGroup",
    "Audience",
    "BlockedListener",
    "BlockedMessage",
    "Calls",
    "Count",
    "Crowd",
    "EventLog",
    "Finding",
    "Gini",
    "Group",
    "GroupAnswers",
    "Health",
    "Inspector",
    "LocalServer",
    "LogRow",
    "Max",
    "Mean",
    "Message",
    "Messager",
    "Messages",
    "Messaging",
    "MessagingConfig",
    "MessagingError",
    "Min",
    "Msg",
    "Of",
    "Outgoing",
    "Price",
    "Quantile",
    "Receipt",
    "Receipts",
    "RedisConfig",
    "Result",
    "Rule",
    "Run",
    "Share",
    "Step",
    "Steps",
    "Study",
    "Sum",
    "Survey",
    "Tracing",
    "batch_run",
    "by_content",
    "columns",
    "compare",
    "errors",
    "grid",
    "id_tuple",
    "report_usage",
    "rules",
    "run",
]

if not TYPE_CHECKING:  # type checkers that see __getattr__ would accept any name

    def __getattr__(name: str) -> object:
        if name == "__version__":
            from importlib.metadata import version  # noqa: PLC0415 - as slow as all other imports here together

            return version("ray-messaging")
        if hasattr(errors, name):
            text = f"{name} is in ray_messaging.errors: from ray_messaging.errors import {name}"
            # In `from ray_messaging import name`, Python would replace the AttributeError by an ImportError that lacks
            # this text.
            if sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap":
                raise ImportError(text, name=name)
            raise AttributeError(text)
        return resolve(__name__, _HOMES, name, _MODULES)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_MODULES, "__version__"})
