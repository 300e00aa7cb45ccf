"""Pauses between retries: the class `Backoff`, and a named policy for each operation that is retried.

The pauses of the embedded server's guard are in `embedded/`, because the guard imports only the standard library.
"""

import asyncio
import random
import time
from dataclasses import dataclass

_jitter = random.SystemRandom()  # the process's own generator is not used, because a user may have seeded it


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Pauses between attempts, in seconds: `first_s`, then always twice the previous pause, up to `longest_s`.

    With `jitter` each pause is multiplied by a random number from 0.5 to 1.5, so that clients that lost a server at the
    same time do not come back at the same time.
    """

    first_s: float
    longest_s: float
    jitter: bool = False


class Backoff:
    """The pauses between the tries of one operation.

    Args: `deadline` is the end of the retries, on the clock of time.monotonic() and asyncio; None: no end.
    """

    __slots__ = ("_pause_s", "deadline", "policy")

    def __init__(self, policy: RetryPolicy, *, deadline: float | None = None) -> None:
        self.policy = policy
        self.deadline = deadline
        self._pause_s = policy.first_s

    @property
    def exhausted(self) -> bool:
        """Return whether the next pause would end after the deadline."""
        return self.deadline is not None and time.monotonic() + self._pause_s > self.deadline

    def next_pause(self) -> float:
        """Return the pause before the next try, in seconds. Each call doubles the pause, up to a limit."""
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, self.policy.longest_s)
        return pause_s * (0.5 + _jitter.random()) if self.policy.jitter else pause_s

    async def sleep(self) -> None:
        """Sleep for the pause before the next try."""
        await asyncio.sleep(self.next_pause())

    def reset(self) -> None:
        """Make the next pause as short as the first one; call this after a success."""
        self._pause_s = self.policy.first_s


# Policies for connections.
REDIS_RETRY = RetryPolicy(0.01, 0.5, jitter=True)
REDIS_RESUBSCRIBE = RetryPolicy(0.2, 0.2)
REDIS_REFUSED = RetryPolicy(0.2, 2.0, jitter=True)  # longer pauses, because the server logs each refused login
MQTT_RECONNECT = RetryPolicy(0.05, 2.0, jitter=True)

HANDLER_RETRY = RetryPolicy(0.1, 5.0, jitter=True)  # a message whose handler failed

# Policies for sends, steps and mailboxes.
FULL_MAILBOX_RETRY = RetryPolicy(0.002, 0.05)
REFUSED_CALL_RETRY = RetryPolicy(0.002, 0.1)  # a call that the server refused before it wrote anything
STALE_DIRECTORY_RETRY = RetryPolicy(0.002, 0.05, jitter=True)  # two processes change the directory at the same time
STALE_VERDICT_RETRY = RetryPolicy(0.002, 0.5)
TRANSACTION_RETRY = RetryPolicy(0.002, 0.1)
STEP_SUPERVISOR_RETRY = RetryPolicy(0.05, 2.0)  # the interceptor's supervisor failed to judge and close a step
STEP_DRIVER_RETRY = RetryPolicy(0.2, 0.2)  # a check whether the lease of a group's driver has ended
LEASE_RETRY = RetryPolicy(0.02, 0.2)  # a call about a mailbox failed; the transport also retries each call
# The outcome of a send is unknown. After this pause the sender claims a higher epoch. From then on the server refuses
# the send if it arrives late.
FENCE_RETRY = RetryPolicy(1.0, 1.0)

# Policies for the interception of messages.
INTERCEPTOR_RETRY = RetryPolicy(0.02, 0.5)
LANE_RETRY = RetryPolicy(30.0, 30.0)  # a socket could not be opened; Ray calls are made during the pause
SNAPSHOT_RETRY = RetryPolicy(1.0, 1.0)  # a sender got no usable copy of the rules; the interceptor judges its messages
RULE_STATE_RETRY = RetryPolicy(0.2, 0.2)  # a write of the rules' state failed; the transport also retries each call
MODERATOR_RETRY = RetryPolicy(0.1, 2.0)

# A call that an agent made with `me.remember` has failed, for example at a rate limit.
CALL_RETRY = RetryPolicy(0.5, 30.0, jitter=True)

STORED_CALL_RETRY = RetryPolicy(0.01, 0.5)  # a check whether another process has stored the answer of a call

AT_REST_RETRY = RetryPolicy(0.001, 0.02)  # a check whether all messages have been delivered and handled

# Policies for the event log. While a disk stays full, the pauses of LOG_WRITE_RETRY become longer.
LOG_WRITE_RETRY = RetryPolicy(0.05, 5.0)
LOG_READ_RETRY = RetryPolicy(0.1, 0.1)  # a read for the event log failed; the transport also retries each call
BLOCKED_LISTENER_RETRY = RetryPolicy(1.0, 1.0)

# Ray actors that have restarted: the pauses between their attempts to start, and between calls that cannot reach them.
ACTOR_RECONNECT = RetryPolicy(0.5, 0.5)  # between attempts to start, while the server does not answer
ACTOR_START_RETRY = RetryPolicy(1.0, 1.0)  # between attempts to start, after another failure, such as a refused login
ACTOR_CALL_RETRY = RetryPolicy(0.1, 0.1)  # calls of an actor that does not answer yet

# Restarts of the embedded server. The first restart is immediate. All pauses together are shorter than the 30 s for
# which senders and receivers retry.
SERVER_RESTART = RetryPolicy(0.5, 8.0)
SERVER_RESTART_ATTEMPTS = 6

# A task has ignored a cancellation: the pause before it is cancelled again.
CANCEL_RETRY = RetryPolicy(0.2, 0.2)
