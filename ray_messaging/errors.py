"""The errors of ray_messaging: what went wrong, which value, what to do.

MessagingError
├── ConfigError                 a setting cannot work; nothing was started
│   └── ServerRefused           the server refused the password, the user or the db (also a ConnectionFailed)
├── InvalidAddress              an id, channel, subtopic, group or experiment name that cannot be used
│   └── UnknownSender           a from_id that is no agent of the group that is to send for it
├── InvalidPayload              a payload that is no JSON object
├── InvalidMsg                  a Msg, or the dict of one, that cannot be: its role, its keys, its class
├── InvalidColumns              columns of a bulk send that do not fit together
├── PayloadTooLarge             a payload above the limit
├── UnknownName                 an experiment, group or agent that does not exist
├── AlreadyExists               an experiment, group or agent claim that exists already
├── TransactionError            a transaction that cannot be opened, or go on
├── CommitFailed                messages that were handled, and could not be committed: others have them by now
├── FetchTooLarge               a complete fetch of more than may be handed out at once
├── NotListening                fetching from a messager that does not listen
├── Closed                      a messager, group or experiment that was closed
├── Fenced                      somebody newer has taken over this mailbox or this sender's name
├── FrameError                  bytes that are no valid frame
├── RuleError                   a rule that cannot be used
├── TraceError                  a trace file with a broken line
├── LogError                    the event log's folder cannot be used: not writable, full, damaged, not there
├── InvalidQuery                a question to the event log that it cannot understand
├── Unbalanced                  sends in the event log that did not end in exactly one fate
├── ServerFailed                the embedded server did not start, or died
└── TransitError                a message's way was cut
    ├── ConnectionFailed        the server cannot be reached
    ├── InterceptorUnavailable  nobody gives verdicts, so nothing may pass
    ├── MailboxFull             a receiver does not keep up
    └── OutcomeUnknown          a send that may or may not have happened

Every error carries its facts as attributes, and pickles with them.
"""

from collections.abc import Sequence
from typing import Any


class MessagingError(Exception):
    """Be the root of every error this package raises on purpose.

    One raised for sends carries what is known: `receipts`, one for each (None where unknown), and the `message_ids` of
    those it concerns.
    """

    receipts: Sequence[Any] | None = None
    message_ids: Sequence[str] = ()

    def __init__(self, message: str, **facts: Any) -> None:  # noqa: ANN401 - facts are of any type by design
        super().__init__(message)
        self.__dict__.update(facts)


class ConfigError(MessagingError, ValueError):
    """A setting cannot work."""


class InvalidAddress(MessagingError, ValueError):
    """An id, channel, subtopic, group or experiment name cannot be used; `value` holds it."""

    value: object


class UnknownSender(InvalidAddress):
    """A message's from_id, `value`, is no agent of the `group` that is to send it; None: nobody says whose it is."""

    group: str


class InvalidPayload(MessagingError, TypeError):
    """A payload is no JSON object."""


class InvalidMsg(MessagingError, ValueError, AssertionError):
    """A Msg, or the dict of one, cannot be; `value`, and of a dict's keys the `missing` and the `extra`.

    AgentScope raises ValueError for a role, AssertionError for a dict: who catches either catches this.
    """

    value: object
    missing: tuple[str, ...] = ()
    extra: tuple[object, ...] = ()


class PayloadTooLarge(MessagingError, ValueError):
    """A payload is above the limit; `size` and `limit` in bytes."""

    size: int
    limit: int


class UnknownName(MessagingError, LookupError):
    """No experiment, group or agent of this name exists; `kind` and `value` say which."""

    kind: str
    value: object


class AlreadyExists(MessagingError, ValueError):
    """An experiment, a group or an agent's claim exists already; `kind`, `value` and, where known, `owner`."""

    kind: str
    value: object
    owner: str | None


class NotListening(MessagingError, RuntimeError):
    """Fetching needs `subscribe_and_start_listening` first."""


class TransactionError(MessagingError, RuntimeError):
    """A transaction cannot be opened or go on: another one is open, it is over, or it takes too much."""


class CommitFailed(MessagingError, RuntimeError):
    """Messages that were handled could not be committed: mostly, they were held too long, and went to another handle.

    `group` names the mailbox, `messages` says how many; `held_s` and `loan_s` are None where time is not the reason.
    """

    group: str
    messages: int
    held_s: float | None = None
    loan_s: float | None = None


class FetchTooLarge(MessagingError, ValueError):
    """A complete fetch would hand out too much: `messages` and `size` (bytes), `limit_messages` and `limit` (bytes)."""

    messages: int
    size: int
    limit_messages: int
    limit: int


class Closed(MessagingError, RuntimeError):
    """The messager, group or experiment was closed.

    `unsent`: it was before this send began, so nothing of it was sent.
    """

    unsent: bool = False


def ended(exp_id: str, *, unsent: bool = False) -> Closed:
    """Build the error for who goes on in an experiment that has ended."""
    return Closed(
        f"experiment {exp_id!r} has ended: it was shut down or started anew, or whoever started it is gone. Close what "
        f"you have of it, and take Messaging.connect({exp_id!r}) where it runs again, or Messaging.start({exp_id!r})",
        unsent=unsent,
    )


class Fenced(MessagingError, RuntimeError):
    """Somebody newer has taken over; `name` holds the mailbox or sender, `epoch` ours."""

    name: str
    epoch: int


class FrameError(MessagingError, ValueError):
    """Bytes are no valid frame."""


class InvalidColumns(MessagingError, ValueError):
    """Columns of a bulk send do not fit together."""


class RuleError(MessagingError, ValueError):
    """A rule cannot be used; `rule` holds its name."""

    rule: str


class TraceError(MessagingError, ValueError):
    """A trace file has a broken line; `file` and `line` (from 1)."""

    file: str
    line: int


class LogError(MessagingError, RuntimeError):
    """The event log's folder cannot be used, or lacks rows (`lost`: the server lost them); `path` says which."""

    path: str
    lost: bool = False


class InvalidQuery(MessagingError, ValueError):
    """A question to the event log cannot be understood; `field` and `value`."""

    field: str
    value: object


class Unbalanced(MessagingError, AssertionError):
    """Some sends did not end in exactly one fate; `offenders` are their message ids, at most 100."""

    offenders: Sequence[str]


class ServerFailed(MessagingError, RuntimeError):
    """The embedded server did not start, or died; `log` holds its last lines."""

    log: str


class TransitError(MessagingError):
    """A message's way was cut."""


class ConnectionFailed(TransitError, ConnectionError):
    """The server cannot be reached; `host` and `port`.

    `unsent`: it was, answered each time that it takes nothing now, and so has nothing of what was sent.
    """

    host: str
    port: int
    unsent: bool = False


class InterceptorUnavailable(TransitError):
    """Nobody gave a verdict in time, so nothing passed."""


class MailboxFull(TransitError):
    """A receiver does not keep up; `mailbox` holds its name."""

    mailbox: str


class OutcomeUnknown(TransitError):
    """A send may or may not have happened: the server could not be asked."""


class ServerRefused(ConfigError, ConnectionFailed):
    """The server refused the password, the user name or the db."""
