"""The errors of ray_messaging.

MessagingError
├── ConfigError                 a setting that cannot work; nothing was started
│   └── ServerRefused           the server refused the password, the user or the db (also a ConnectionFailed)
├── InvalidAddress              an invalid id, channel, subtopic, group or experiment name
│   └── UnknownSender           a from_id that is not an agent of the sending group
├── InvalidPayload              a payload that is not a JSON object
│   └── PayloadMismatch         a payload that does not fit a type or a schema
├── InvalidMsg                  an invalid Msg, or an invalid dict of a Msg
├── InvalidColumns              columns of a bulk send that do not fit together
├── PayloadTooLarge             a payload above the limit
├── UnknownName                 an experiment, group or agent that does not exist
├── AlreadyExists               an experiment or group that exists already, or an agent of another group
├── TransactionError            a transaction that cannot be opened or continued
├── NotRepeatable               a model that gives another result when it runs again
├── StepAborted                 a step that was not committed: the next loop over the group's steps runs it again
├── StepFailed                  the model's function failed in a step of `Messaging.run`
├── BudgetSpent                 the budget of calls or money is spent: the run ends with the committed steps
├── ModelFailed                 a language model behind `models.Chat` that gives no answer
│   ├── ModelTimeout            a language model that does not answer in time
│   └── AnswerUnfit             answers of a language model that do not fit the form that was asked for
├── AudienceTooLarge            positions that make more pairs than the limit
├── StepTooLarge                a step with more messages than a group can read in one step
├── UndeclaredSend              a send in a step to a group that was not declared to hear the sender
├── NoAnswer                    a question that got no answer in time, or can get none
│   └── AnswerFailed            a question whose handler failed
├── QuestionBlocked             a question that a rule blocked
├── NoQuestion                  a reply to a message that expects no answer, or was answered already
├── CommitFailed                processed messages that could not be committed: they were redelivered
├── MoveFailed                  agents that could not leave their group: nothing has changed
├── FetchTooLarge               a complete fetch above its limits
├── NotListening                a fetch from a messager that does not listen
├── Closed                      a messager, group or experiment that was closed
├── Fenced                      a newer process has taken over the name of this mailbox, sender, group or experiment
├── FrameError                  bytes that are not a valid frame
│   └── BodyLost                messages of a step that their server has lost
├── RuleError                   a rule that cannot be used
├── TraceError                  a trace file with an invalid line
├── LogError                    the event log's folder cannot be used: not writable, full, damaged, missing
├── InvalidQuery                an invalid query of the event log
├── Unbalanced                  sends in the event log that did not end in exactly one fate
├── ServerFailed                the embedded server did not start, or died
└── TransitError                a message could not be delivered
    ├── ConnectionFailed        the server cannot be reached
    ├── InterceptorUnavailable  no verdict came in time, so nothing was sent
    ├── MailboxFull             a receiver is too slow
    └── OutcomeUnknown          a send that may or may not have happened
        └── NotReplicated       too few replicas confirmed a call (also a ConnectionFailed)

Every error has its facts as attributes, and keeps them when pickled.
"""

from collections.abc import Sequence
from typing import Any

__all__ = [
    "AlreadyExists",
    "AnswerFailed",
    "AnswerUnfit",
    "AudienceTooLarge",
    "BodyLost",
    "BudgetSpent",
    "Closed",
    "CommitFailed",
    "ConfigError",
    "ConnectionFailed",
    "Fenced",
    "FetchTooLarge",
    "FrameError",
    "InterceptorUnavailable",
    "InvalidAddress",
    "InvalidColumns",
    "InvalidMsg",
    "InvalidPayload",
    "InvalidQuery",
    "LogError",
    "MailboxFull",
    "MessagingError",
    "ModelFailed",
    "ModelTimeout",
    "MoveFailed",
    "NoAnswer",
    "NoQuestion",
    "NotListening",
    "NotRepeatable",
    "NotReplicated",
    "OutcomeUnknown",
    "PayloadMismatch",
    "PayloadTooLarge",
    "QuestionBlocked",
    "RuleError",
    "ServerFailed",
    "ServerRefused",
    "StepAborted",
    "StepFailed",
    "StepTooLarge",
    "TraceError",
    "TransactionError",
    "TransitError",
    "Unbalanced",
    "UndeclaredSend",
    "UnknownName",
    "UnknownSender",
]


def __dir__() -> list[str]:
    return __all__


class MessagingError(Exception):
    """Root of every error that this package raises on purpose.

    The facts of an error, such as the value that is wrong, are its attributes. An error of a send has `receipts`, one
    for each message (None if a message's fate is unknown), and `message_ids`, the ids of the messages that the error is
    about.
    """

    receipts: Sequence[Any] | None = None
    message_ids: Sequence[str] = ()

    def __init__(self, message: str, **facts: Any) -> None:  # noqa: ANN401 - facts are of any type by design
        super().__init__(message)
        self.__dict__.update(facts)


class ConfigError(MessagingError, ValueError):
    """A setting or argument cannot work, or the experiment does not allow a call.

    For example, `group.steps(...)` works only in an experiment that was started with `steps=Steps()`.
    """


class InvalidAddress(MessagingError, ValueError):
    """An id, channel, subtopic, group or experiment name cannot be used; `value` is that id or name."""

    value: object


class UnknownSender(InvalidAddress):
    """A message's from_id, `value`, is not an agent of the sending `group`. Without a from_id, `value` is None."""

    group: str


class InvalidPayload(MessagingError, TypeError):
    """A payload is not a JSON object, or a state or result that a run stores has a value that cannot be stored."""


class PayloadMismatch(InvalidPayload, ValueError):
    """A payload does not fit a type or a schema; `field` is the part that does not fit (empty: the whole payload).

    `agent` is the payload's sender. For a received message `message_id` is set. For a message that a schema refused,
    `row` (its position in the call) and `subtopic` are set.
    """

    field: str
    agent: int | str | None
    message_id: str | None = None
    row: int | None = None
    subtopic: str | None = None


class InvalidMsg(MessagingError, ValueError, AssertionError):
    """A Msg, or its dict form, is invalid; `value` is the dict, or the invalid part of the Msg or dict.

    `missing` has the keys that a dict lacks, `extra` the keys that it must not have. AgentScope raises ValueError for
    an invalid role and AssertionError for an invalid dict; this error is of both types.
    """

    value: object
    missing: tuple[str, ...] = ()
    extra: tuple[object, ...] = ()


class PayloadTooLarge(MessagingError, ValueError):
    """A payload, a transaction or a value to store is above its limit; `size` and `limit` are in bytes."""

    size: int
    limit: int


class UnknownName(MessagingError, LookupError):
    """No experiment, group, agent or other thing has this name.

    `kind` says what was looked for, and `value` is the name.
    """

    kind: str
    value: object


class AlreadyExists(MessagingError, ValueError):
    """The name of an experiment, group or survey is taken, or an agent belongs to another group already.

    This error is also raised if a folder has the log of another run, or if another messager or Ray task already
    iterates over a group's steps. `kind` says what exists, and `value` is its name or id. `owner` is the name of its
    owner, or None if the owner is not known.
    """

    kind: str
    value: object
    owner: str | None


class MoveFailed(MessagingError, RuntimeError):
    """Agents could not leave their `group`, and nothing has changed.

    `messages` is the number of messages that prevent the move, such as fetched messages that were not committed. It is
    0 if the move has failed for another reason.
    """

    group: str
    messages: int


class NotListening(MessagingError, RuntimeError):
    """The messager does not listen.

    Call `subscribe_and_start_listening` before a fetch. The error is also raised by the inbox of an agent that has left
    the messager, and if the mailbox of a group or messager is gone from the server.
    """


class TransactionError(MessagingError, RuntimeError):
    """A transaction cannot be opened or cannot go on, for example because another one is open, or it is too large."""


class NotRepeatable(MessagingError, AssertionError):
    """A model gave another result when it ran again in `ray_messaging.testing.check_repeatable`, or in a fork.

    `step` and `agent` say where the results first differ. If `what` is "message" or "state", `mine` is the message or
    state of the first run, and `theirs` is that of the later run. For a fork, `mine` is the message of the fork, and
    `theirs` is that of the run from which the fork was made. A message that a run did not send is None. If only the
    later run failed, `what` is "failure", `mine` is None, and `theirs` is the text of the later run's error.
    """

    step: int
    agent: int | str | None
    what: str
    mine: object
    theirs: object


class StepAborted(MessagingError, RuntimeError):
    """A step was not committed, so nothing that was done in it counts. The next loop over the group's steps repeats it.

    If the server did not answer the commit, the step may be committed after all. The next loop finds out.

    `step` is the step's number, and `group` the group that did not commit it.
    """

    step: int
    group: str


class BudgetSpent(MessagingError):
    """The budget of `Calls(budget=)`, which limits calls or money, is spent.

    The run ends, and the step that it has begun is not committed. The next run can begin with that step.
    """


class ModelFailed(MessagingError, RuntimeError):
    """A language model gives no answer, because its server refuses the call, or cannot be reached.

    `model` is the model's name, and `tries` how often it was asked. `status` is the HTTP status of the last answer, or
    None if there was no answer.
    """

    model: str
    tries: int
    status: int | None


class ModelTimeout(ModelFailed, TimeoutError):
    """A language model did not answer in time, in any of several tries."""


class AnswerUnfit(ModelFailed, ValueError):
    """The answers of a language model do not fit the form that was asked for.

    `answer` is the beginning of the last answer.
    """

    answer: str


class StepFailed(MessagingError, RuntimeError):
    """The model's function failed for an agent in a step of a run; the step was not committed.

    `agent`, `step` and `group` say where. `agent` is None if the model has one function for a whole group. `trace` is
    the traceback of the model's code as text, or "" if that code did not raise. This error is also raised if the
    condition `until=` fails after a step. Then the step is committed, `agent` is None, and `group` is "".
    """

    agent: int | str | None
    step: int
    group: str
    trace: str = ""


class AudienceTooLarge(MessagingError, ValueError):
    """An audience with positions has more pairs of sender and hearer than `limit` allows.

    In such an audience, agents hear each other if the distance of their positions is at most a radius. `pairs` is the
    number of pairs. If there are many positions, the number is an estimate, and the error's text says "about".
    """

    pairs: int
    limit: int


class StepTooLarge(MessagingError, ValueError):
    """A group would read more messages or bytes in one step than its limits allow.

    `rows` and `nbytes` are the numbers of messages and bytes of the step, `limit_rows` and `limit_bytes` their limits.
    """

    rows: int
    nbytes: int
    limit_rows: int
    limit_bytes: int


class UndeclaredSend(MessagingError, ValueError):
    """A group sent in a step to groups that were not declared to hear it; the step was not committed.

    `group` is the group that sent in `step`. `hearers` are the groups to which it sent, and which do not wait for its
    messages, because they were not declared by `messaging.steps.declare`.
    """

    group: str
    step: int
    hearers: tuple[str, ...]


class NoAnswer(MessagingError, TimeoutError):
    """A question has no answer: `agent` gave none within `timeout` seconds, can give none, or never got the question.

    `question` is the message id of the question, and `fate` says what became of the question, such as "delivered". If
    the question was not sent, or the server did not confirm it, `question` is "" and `fate` is "unknown".
    """

    agent: object
    question: str
    timeout: float | None
    fate: str


class AnswerFailed(NoAnswer):
    """A question has no answer, because the handler of `agent` failed.

    `error` is the type of the handler's exception, `text` its text. Code that can go on without an answer needs to
    catch only NoAnswer, of which this class is a subclass.
    """

    error: str
    text: str


class QuestionBlocked(MessagingError, PermissionError):
    """A `rule` blocked a question to `agent`, for a `reason`; `question` is its message id."""

    agent: object
    question: str
    rule: str | None
    reason: str | None


class NoQuestion(MessagingError, ValueError):
    """`agent` cannot reply to the message `question`.

    For example, the message expects no answer from `agent`, was answered already, or was read in another step.
    """

    question: str
    agent: object = None


class CommitFailed(MessagingError, RuntimeError):
    """Fetched messages could not be committed, mostly because they were held too long, and another fetch got them.

    `group` is the name of the group or messager that fetched the messages first, and `messages` is their number. The
    messages were held for `held_s` seconds, and may be held for `loan_s` seconds. `held_s` and `loan_s` are None if no
    other fetch got the messages.
    """

    group: str
    messages: int
    held_s: float | None = None
    loan_s: float | None = None


class FetchTooLarge(MessagingError, ValueError):
    """A fetch with `complete=True` is above its limits.

    The fetch would have `messages` messages and `size` bytes; `limit_messages` and `limit` (in bytes) are its limits.
    """

    messages: int
    size: int
    limit_messages: int
    limit: int


class Closed(MessagingError, RuntimeError):
    """The messager, group or experiment was closed.

    If `unsent` is true, it was closed before this send began, so nothing was sent.
    """

    unsent: bool = False


def ended(exp_id: str, why: str = "", *, unsent: bool = False) -> Closed:
    """Build the error for a call in an experiment that has ended, by itself or because its Ray cluster has ended."""
    return Closed(
        f"experiment {exp_id!r} has ended: {why or 'it was shut down or started anew, or its driver has died'}. Close "
        f"your handles, then call Messaging.connect({exp_id!r}) if it runs again, or Messaging.start({exp_id!r})",
        unsent=unsent,
    )


class Fenced(MessagingError, RuntimeError):
    """This process no longer owns the name `name`, mostly because a newer process has taken over this name.

    `name` belongs to a mailbox, sender, group, experiment or event log. The server gives each owner of a name a number,
    and `epoch` is the number of this process. If the error is about a step that does not follow the group's last closed
    step, `epoch` is the number of that closed step.
    """

    name: str
    epoch: int


class FrameError(MessagingError, ValueError):
    """Stored or received bytes are not in this package's format, or a payload is not JSON."""


class BodyLost(FrameError):
    """Messages of a step are missing on a server that had confirmed them.

    `box` is a text that names the mailbox and the step, and `shard` is the number of the server, from 0.
    """

    box: str
    shard: int


class InvalidColumns(MessagingError, ValueError):
    """Columns of many messages do not fit together, have values that cannot be sent, or are missing in a message.

    `column` is the name of a column of `columns(...)`, or None if the error is not about one such column. `row` is the
    number of the row or message that is at fault, or None if the error is not about one of them.
    """

    column: str | None = None
    row: int | None = None


class RuleError(MessagingError, ValueError):
    """A rule, or a value that a rule keeps, cannot be used; `rule` is the rule's name, or "" if it is not known."""

    rule: str


class TraceError(MessagingError, ValueError):
    """A trace file, whose messages are to be replayed, has an invalid line, or cannot be read.

    `file` is the file's path, `line` the number of the line, from 1 (0: the file cannot be read).
    """

    file: str
    line: int


class LogError(MessagingError, RuntimeError):
    """The event log cannot be used, or rows are missing in it.

    `path` is the log's folder, or the file that cannot be read or written. `lost` is true if the server has lost the
    missing rows.
    """

    path: str
    lost: bool = False


class InvalidQuery(MessagingError, ValueError):
    """A query or an export of the event log is invalid, because its argument `field` has the value `value`."""

    field: str
    value: object


class Unbalanced(MessagingError, AssertionError):
    """The event log does not say what became of some sends, or says it more than once.

    `offenders` are the message ids of these sends, at most 100.
    """

    offenders: Sequence[str]


class ServerFailed(MessagingError, RuntimeError):
    """The embedded server did not start, or died, or Ray did not start.

    `log` has the last lines of the embedded server's output. It is "" if Ray did not start.
    """

    log: str


class TransitError(MessagingError):
    """A message could not be delivered or committed, or it is unknown whether it was.

    Subclasses say why: ConnectionFailed, InterceptorUnavailable, MailboxFull and OutcomeUnknown.
    """


class ConnectionFailed(TransitError, ConnectionError):
    """The server at `host` and `port` cannot be reached.

    If `unsent` is true, nothing was sent, because every call failed before the server could execute it.
    """

    host: str
    port: int
    unsent: bool = False


class InterceptorUnavailable(TransitError):
    """The interceptor, the actor that holds the rules, did not answer in time, so nothing was sent."""


class MailboxFull(TransitError):
    """A mailbox, the event log or the server's memory is full, mostly because a receiver is too slow.

    `mailbox` is the mailbox's name. If the memory is full, `mailbox` is "", or the name of the group whose step was
    not committed.
    """

    mailbox: str


class OutcomeUnknown(TransitError):
    """A send may or may not have happened, because the server did not answer."""


class NotReplicated(OutcomeUnknown, ConnectionFailed):
    """Too few replicas of the server confirmed a call in time; the primary may have executed it, and may still lose it.

    `replicas` is the number of replicas that confirmed the call, `wanted` (`MessagingConfig.wait_replicas`) the number
    that must confirm it. `host` and `port` are the primary's.
    """

    replicas: int
    wanted: int


class ServerRefused(ConfigError, ConnectionFailed):
    """The server refused the password, the user name or the db."""
