"""The errors of ray_messaging.

MessagingError
├── ConfigError                 a setting that cannot work; nothing was started
│   └── ServerRefused           the server refused the password, the user or the db (also a ConnectionFailed)
├── InvalidAddress              an invalid id, channel, subtopic, group or experiment name
│   └── UnknownSender           a from_id that is not an agent of the sending group
├── InvalidPayload              a payload that is not a JSON object
│   └── PayloadMismatch         a payload that does not fit a type or a schema
├── InvalidMsg                  an invalid Msg, or dict of one: its role, its keys, its class
├── InvalidColumns              columns of a bulk send that do not fit together
├── PayloadTooLarge             a payload above the limit
├── UnknownName                 an experiment, group or agent that does not exist
├── AlreadyExists               an experiment, group or agent claim that exists already
├── TransactionError            a transaction that cannot be opened or continued
├── NotRepeatable               a model that gives another result when it runs again
├── StepAborted                 a step that was not committed: the group's next driver runs it again
├── StepFailed                  the model's function failed in a step of `Messaging.run`
├── BudgetSpent                 the budget of calls is spent: the run ends with the committed steps
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
├── Fenced                      a newer process has taken over this mailbox or this sender's name
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


class MessagingError(Exception):
    """Root of every error that this package raises on purpose.

    An error of a send carries `receipts`, one for each message (None if unknown), and the `message_ids` that it
    concerns.
    """

    receipts: Sequence[Any] | None = None
    message_ids: Sequence[str] = ()

    def __init__(self, message: str, **facts: Any) -> None:  # noqa: ANN401 - facts are of any type by design
        super().__init__(message)
        self.__dict__.update(facts)


class ConfigError(MessagingError, ValueError):
    """A setting cannot work."""


class InvalidAddress(MessagingError, ValueError):
    """An id, channel, subtopic, group or experiment name cannot be used; `value` is that id or name."""

    value: object


class UnknownSender(InvalidAddress):
    """A message's from_id, `value`, is not an agent of the sending `group`. Without a from_id, `value` is None."""

    group: str


class InvalidPayload(MessagingError, TypeError):
    """A payload is not a JSON object."""


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
    """A payload is above the limit; `size` and `limit` in bytes."""

    size: int
    limit: int


class UnknownName(MessagingError, LookupError):
    """No experiment, group, agent or other thing of this name exists; `kind` is what it would be, `value` its name."""

    kind: str
    value: object


class AlreadyExists(MessagingError, ValueError):
    """An experiment, a group or an agent's claim already exists.

    `kind` says what exists, and `value` is its name or id; `owner` is its owner, or None if the owner is not known.
    """

    kind: str
    value: object
    owner: str | None


class MoveFailed(MessagingError, RuntimeError):
    """Agents could not leave their `group`, and nothing has changed.

    `messages` is the number of their messages that are in the way, such as fetched ones that were not committed.
    """

    group: str
    messages: int


class NotListening(MessagingError, RuntimeError):
    """The messager does not listen.

    A fetch needs `subscribe_and_start_listening` first. An inbox needs an agent that the messager hosts.
    """


class TransactionError(MessagingError, RuntimeError):
    """A transaction cannot be opened or continued: another is open, it has ended, or it is too large."""


class NotRepeatable(MessagingError, AssertionError):
    """A model gave another result when it ran again (`ray_messaging.testing.check_repeatable`).

    `step` and `agent` say where the results first differ. `what` is "message" or "state": `mine` and `theirs` are the
    two messages or states, and a message is None if one run did not send it. If only the later run failed, `what` is
    "failure", `mine` is None, and `theirs` is the text of the later run's error.
    """

    step: int
    agent: int | str | None
    what: str
    mine: object
    theirs: object


class StepAborted(MessagingError, RuntimeError):
    """A step was not committed, and nothing in it counts: the group's next driver runs the step again.

    If the server did not answer the commit, the step may be committed all the same. The next driver finds out whether
    it is.

    `step` is the step's number, and `group` the group that did not commit it.
    """


class BudgetSpent(MessagingError):
    """The budget of calls of `Calls(budget=)` is spent: the open step can run only after another start."""


class StepFailed(MessagingError, RuntimeError):
    """The model's function failed for an agent in a step of `Messaging.run`; the step was not committed.

    `agent`, `step` and `group` say where. `agent` is None if the model has one function for a whole group. `trace` is
    the traceback of the user's code as text, or "" if that code did not raise.
    """

    agent: int | str | None
    step: int
    group: str
    trace: str = ""


class AudienceTooLarge(MessagingError, ValueError):
    """Positions make more pairs than their audience may have: `limit` is the most that it may have.

    `pairs` is the number of pairs. In large crowds it is an estimate, and the message says "about".
    """

    pairs: int
    limit: int


class StepTooLarge(MessagingError, ValueError):
    """A group would read more messages or bytes in one step than its limits allow.

    `rows` and `nbytes` are the messages and bytes of the step, `limit_rows` and `limit_bytes` the limits.
    """


class UndeclaredSend(MessagingError, ValueError):
    """In a step, a group sends to groups that were declared not to hear it; the step was not committed.

    `group` is the group that sends in `step`, and `hearers` are the groups that would not wait for its messages.
    """

    group: str
    step: int
    hearers: tuple[str, ...]


class NoAnswer(MessagingError, TimeoutError):
    """A question has no answer: `agent` did not give one within `timeout` seconds, or the question never arrived.

    `question` is the question's message id, and `fate` the fate of the question.
    """

    agent: object
    question: str
    timeout: float | None
    fate: str


class AnswerFailed(NoAnswer):
    """A question has no answer, because the handler of `agent` failed on it.

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
    """`agent` cannot send a reply: message `question` expects no answer from it, or was answered already."""

    question: str
    agent: object = None


class CommitFailed(MessagingError, RuntimeError):
    """Processed messages could not be committed, mostly because they were held too long and were redelivered.

    `group` is the mailbox, and `messages` the number of these messages. They were held for `held_s` seconds, and
    `loan_s` is the most seconds for which they may be held; both are None if time is not the reason.
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
    """Build the error for a call in an experiment that has ended, or whose Ray cluster has ended."""
    return Closed(
        f"experiment {exp_id!r} has ended: {why or 'it was shut down or started anew, or its driver has died'}. Close "
        f"your handles, then call Messaging.connect({exp_id!r}) if it runs again, or Messaging.start({exp_id!r})",
        unsent=unsent,
    )


class Fenced(MessagingError, RuntimeError):
    """A newer process has taken over the mailbox or sender `name`; `epoch` is the number of this older owner."""

    name: str
    epoch: int


class FrameError(MessagingError, ValueError):
    """Bytes are not a valid frame."""


class BodyLost(FrameError):
    """Messages of a step are missing on a server that had confirmed them.

    `box` names the mailbox and step, `shard` is the number of the server.
    """

    box: str
    shard: int


class InvalidColumns(MessagingError, ValueError):
    """Columns of a bulk send do not fit together, or have values that cannot travel.

    `column` is the name of a typed column, or None if the error is not about one column. `row` is the row of a value,
    or None if the error is not about one row.
    """

    column: str | None = None
    row: int | None = None


class RuleError(MessagingError, ValueError):
    """A rule cannot be used; `rule` holds its name."""

    rule: str


class TraceError(MessagingError, ValueError):
    """A trace file has an invalid line: `file` is its path, `line` the number of the line, from 1."""

    file: str
    line: int


class LogError(MessagingError, RuntimeError):
    """The event log's folder, `path`, cannot be used, or lacks rows. `lost` is true if the server has lost the rows."""

    path: str
    lost: bool = False


class InvalidQuery(MessagingError, ValueError):
    """A query of the event log is invalid: `field` is the argument, `value` what it was given."""

    field: str
    value: object


class Unbalanced(MessagingError, AssertionError):
    """Some sends did not end in exactly one fate; `offenders` are their message ids, at most 100."""

    offenders: Sequence[str]


class ServerFailed(MessagingError, RuntimeError):
    """The embedded server did not start, or died; `log` has its last lines."""

    log: str


class TransitError(MessagingError):
    """A message could not be delivered."""


class ConnectionFailed(TransitError, ConnectionError):
    """The server at `host` and `port` cannot be reached.

    If `unsent` is true, the server was reached but refused each attempt, so nothing was sent.
    """

    host: str
    port: int
    unsent: bool = False


class InterceptorUnavailable(TransitError):
    """There was no verdict in time, so nothing was sent."""


class MailboxFull(TransitError):
    """A receiver is too slow, and its mailbox is full; `mailbox` is its name."""

    mailbox: str


class OutcomeUnknown(TransitError):
    """A send may or may not have happened: the server did not answer."""


class NotReplicated(OutcomeUnknown, ConnectionFailed):
    """Too few replicas of the server confirmed a call in time; the primary may have executed it, and may lose it.

    `replicas` is the number of replicas that confirmed the call, `wanted` (`MessagingConfig.wait_replicas`) the number
    that must confirm it. `host` and `port` are the primary's.
    """

    replicas: int
    wanted: int


class ServerRefused(ConfigError, ConnectionFailed):
    """The server refused the password, the user name or the db."""
