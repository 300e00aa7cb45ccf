"""The names that users may import, locked: a change here is a change for them."""

import ray_messaging
from ray_messaging import errors, rules

NAMES = [
    "AlreadyExists", "AnswerFailed", "Answers", "AsyncGroup", "Audience", "AudienceTooLarge", "BlockedListener",
    "BlockedMessage", "BodyLost", "BudgetSpent", "Calls", "Closed", "CommitFailed", "ConfigError", "ConnectionFailed",
    "Count", "EventLog", "Fenced", "FetchTooLarge", "Finding", "FrameError", "Group", "Health", "Inspector",
    "InterceptorUnavailable", "InvalidAddress", "InvalidColumns", "InvalidMsg", "InvalidPayload",
    "InvalidQuery", "LocalServer", "LogError", "LogRow", "MailboxFull", "Mean", "Message", "Messager", "Messages",
    "Messaging", "MessagingConfig", "MessagingError", "MoveFailed", "Msg", "NoAnswer", "NoQuestion", "NotListening",
    "NotRepeatable", "NotReplicated", "OutcomeUnknown", "Outgoing", "PayloadMismatch", "PayloadTooLarge",
    "QuestionBlocked", "Receipt", "Receipts", "RedisConfig", "Result", "Rule", "RuleError", "Run", "ServerFailed",
    "ServerRefused", "StepAborted", "StepFailed", "StepTooLarge", "Steps", "Survey", "TraceError", "Tracing",
    "TransactionError", "TransitError", "Unbalanced", "UndeclaredSend", "UnknownName", "UnknownSender", "columns",
    "compare", "rules",
]  # fmt: skip

RULES = [
    "ALLOW", "Added", "AllowGraph", "BlackList", "Block", "EdgeBan", "MaxLength", "Moderator", "OpenAIModerator",
    "PairCheck", "Pattern", "RateLimit", "RoundQuota", "Rule", "Sample", "SenderBan", "SlowRule", "StepRule",
    "StepVerdicts", "Supervisor", "Table", "Verdict", "block", "label", "rewrite",
]  # fmt: skip


def test_all_is_sorted_and_locked():
    assert list(ray_messaging.__all__) == sorted(NAMES) == NAMES


def test_every_public_name_comes_by_a_star_is_shown_by_dir_and_has_a_docstring():
    names = {}
    exec("from ray_messaging import *", names)
    assert {*ray_messaging.__all__, "errors"} <= set(dir(ray_messaging))
    for name in ray_messaging.__all__:
        assert names[name].__doc__, name


def test_rules_are_locked():
    assert rules.__all__ == sorted(RULES) == RULES


def test_every_error_is_public_and_drawn_in_the_tree():
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.MessagingError):
            assert name in ray_messaging.__all__, name
            assert getattr(ray_messaging, name) is value
            assert f" {name} " in f" {errors.__doc__.replace(chr(10), ' ')} ", name
