"""The errors of messages that were not sent, or that may not have been sent."""

from ray_messaging.errors import (
    Closed,
    ConfigError,
    Fenced,
    InterceptorUnavailable,
    MailboxFull,
    NotReplicated,
    OutcomeUnknown,
    PayloadTooLarge,
    TransactionError,
    TransitError,
)
from ray_messaging.sending.frame_router import OutboundFrame
from ray_messaging.transports.transport_values import DIRECTORY_CHANGES, Conclusion, FrameFate, SendStatus

STALE = (
    "a new interceptor has replaced the one of this messager, but did not answer in time, so nothing was sent: look "
    "at the new interceptor's actor, or pass the new interceptor to set_message_interceptor, then send again"
)
RULES_CAME = (
    "while these broadcasts were being sent, a rule was inserted that must judge each hearer, so nothing was sent: "
    "send again"
)


def refused(frame: OutboundFrame, why: FrameFate | SendStatus) -> MailboxFull | TransitError:
    """Build the error for a frame that the server has refused until the frame's deadline had passed."""
    placed = sorted(mailbox for mailbox, rows in frame.in_flight.placed.items() if rows.any())
    others = f"; other listeners on the channel have got some of the messages: {', '.join(placed)}" if placed else ""
    if why is FrameFate.LOG_FULL:
        return MailboxFull(
            "the event log does not keep up, so these messages were not written: look at "
            "messaging.stats()['log'] (is its disk full?), or raise MessagingConfig.mailbox_messages or "
            f"mailbox_bytes{others}",
            mailbox=frame.mailbox,
        )
    if why is FrameFate.FULL:
        return MailboxFull(
            f"mailbox {frame.mailbox!r} stayed full, so these messages were not sent there: fetch the messages of this "
            f"mailbox faster, or raise MessagingConfig.mailbox_messages or mailbox_bytes{others}",
            mailbox=frame.mailbox,
        )
    reason = (
        "the server has lost, more than once, what this messager had sent: look for restarts of the server without "
        "its data, or for a program that restores older data"
    )
    if why is FrameFate.GONE:
        reason = (
            f"the messages of mailbox {frame.mailbox!r} are gone from the server (was a key deleted, or evicted?), so "
            "the messager that reads this mailbox will end: open that messager again"
        )
    elif why is SendStatus.STALE_DIRECTORY:
        reason = DIRECTORY_CHANGES
    return TransitError(f"these messages were not written within MessagingConfig.send_timeout_s, because {reason}")


def too_large(frame: OutboundFrame, limit: int) -> PayloadTooLarge:
    """Build the error for a frame that is too large even for an empty mailbox. `limit` is in bytes."""
    return PayloadTooLarge(
        f"mailbox {frame.mailbox!r} cannot hold {len(frame.frame):,} bytes, not even when it is empty: send a "
        "reference to the data instead, or raise MessagingConfig.mailbox_bytes in the process that opens the mailbox",
        size=len(frame.frame),
        limit=limit,
    )


def no_verdicts() -> ConfigError:
    """Build the error for messages without verdicts in an experiment that has an interceptor."""
    return ConfigError(
        "this experiment has an interceptor, but this messager was made without it, so nothing was sent: pass "
        "messaging.interceptor to Messager(config, exp_id, messaging.interceptor)"
    )


def undecided(limit_s: float) -> InterceptorUnavailable:
    """Build the error for messages that a slow rule did not judge before their messager closed."""
    return InterceptorUnavailable(
        f"this messager was closed, and a slow rule gave no verdict within {limit_s:g} s after that, so nothing was "
        "sent: look at what the rule waits for, or await the receipts before you close the messager"
    )


def fenced(sender: str, epoch: int) -> Fenced:
    """Build the error for a sender whose name another messager has taken over."""
    return Fenced(
        f"another messager has taken over the name {sender!r}: close this messager",
        name=sender,
        epoch=epoch,
    )


def reader_fenced(conclusion: Conclusion) -> Fenced:
    """Build the error for a transaction whose mailbox has a newer reader, or is no longer on the server."""
    return Fenced(
        f"mailbox {conclusion.mailbox!r} has a newer messager, or is gone from the server, so nothing of this "
        "transaction was done: close this messager",
        name=conclusion.mailbox,
        epoch=conclusion.epoch,
    )


def behind() -> TransactionError:
    """Build the error for a transaction, if the server has lost an earlier transaction that it had confirmed."""
    return TransactionError(
        "the server has lost a transaction that it had confirmed (was it restored from a backup?), so nothing of the "
        "present transaction was done: close this messager and open it again. It then goes on with the data that the "
        "server has"
    )


def taken_over() -> OutcomeUnknown:
    """Build the error for messages that were being sent when another messager took over the name."""
    return OutcomeUnknown(
        "another messager took over the name of this messager, or the server lost the name, while these messages were "
        "being sent: check which messages have arrived, and send the others again by a new messager"
    )


def cut_off(why: Exception) -> OutcomeUnknown:
    """Build the error for messages that were being sent when sending stopped."""
    return OutcomeUnknown(
        f"sending stopped while these messages were being sent ({why}): check whether the messages have arrived"
    )


def unknown(cause: Exception) -> OutcomeUnknown:
    """Build the error for messages that were being sent when the server or its replicas did not answer."""
    if isinstance(cause, NotReplicated):
        return NotReplicated(
            f"these messages are on the primary, but may be lost, because too few replicas have them ({cause}). Check "
            "whether they arrive, or send them again",
            host=cause.host,
            port=cause.port,
            replicas=cause.replicas,
            wanted=cause.wanted,
        )
    if isinstance(cause, OutcomeUnknown):  # a new error would say less than the cause
        return cause
    remedy = (
        "Check whether they have arrived, or send them again: then some may arrive twice. As long as this messager "
        "does not reach the server, they may still arrive"
    )
    if isinstance(cause, Closed):  # a closed messager cannot send the messages again
        remedy = "Check whether they have arrived"
    error = OutcomeUnknown(
        f"the server has not confirmed these messages, so they may or may not have been sent ({cause}). {remedy}"
    )
    error.__cause__ = cause
    return error
