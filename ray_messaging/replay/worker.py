"""Worker of one group: it sends the group's share, and checks received messages at the same time."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.errors import MessagingError
from ray_messaging.messager import Messager
from ray_messaging.replay.checker import Checker, Tally
from ray_messaging.replay.plan import Reference, Share

CHUNK_ROWS = 16_384  # per call: a few frames, so that progress is visible
TICK_S = 0.2  # timeout of a fetch; the last one catches unexpected messages
PATIENCE_S = 20.0  # longest wait for a delivered message while no other arrives


class Sent(NamedTuple):
    """Result of sending a group's share: a fate for each of its rows (uint8), begin and end in unix s."""

    codes: NDArray[np.uint8]
    blocked_by: Counter[str]
    began_at: float
    ended_at: float


class Worker:
    """Sender and receiver of one group; a plain object, so that Ray does not wrap its hot code."""

    def __init__(self, messager: Messager, reference: Reference, share: Share) -> None:
        self._messager = messager
        self._reference = reference
        self._share = share
        self._checker = Checker(reference, share.group)
        self._expected: int | None = None
        self._sent = 0

    @property
    def progress(self) -> tuple[int, int]:
        """Return the numbers of messages sent and received."""
        return self._sent, self._checker.received

    async def send(self) -> Sent:
        """Send the share in order, each message at its due time."""
        codes = np.zeros(len(self._share.rows), np.uint8)
        blocked_by: Counter[str] = Counter()
        began_at = time.time()
        start = time.monotonic()
        for low, high, early in self._chunks(start):
            if early > 0:
                await asyncio.sleep(early)
            receipts = await self._messager.send_columns(*self._columns(low, high))
            codes[low:high] = receipts.codes
            blocked_by += receipts.blocked_by()
            self._sent += high - low
        return Sent(codes, blocked_by, began_at, time.time())

    def _chunks(self, start: float) -> Iterator[tuple[int, int, float]]:
        """Yield chunks of the share, rows `low` to `high`, with the time to wait before each, in s."""
        due, rows, low = self._share.due, len(self._share.rows), 0
        while low < rows:
            high, early = min(rows, low + CHUNK_ROWS), 0.0
            if due is not None:
                elapsed = time.monotonic() - start
                ready = int(np.searchsorted(due, elapsed, side="right"))
                high = min(high, max(ready, low + 1))
                early = float(due[low]) - elapsed
            yield low, high, early
            low = high

    def _columns(self, low: int, high: int) -> tuple[Any, Any, list[dict[str, Any]]]:
        reference, share = self._reference, self._share
        rows = share.rows[low:high]
        payloads: list[dict[str, Any]] = [
            {"n": n, "time": at} for n, at in zip(rows.tolist(), reference.times[rows].tolist(), strict=True)
        ]
        if share.texts is not None:
            for payload, text in zip(payloads, share.texts[low:high], strict=True):
                payload["text"] = text
        return reference.agents[reference.senders[rows]], reference.agents[reference.receivers[rows]], payloads

    def expect(self, messages: int) -> None:
        """Set the number of messages that were delivered to this group, after all receipts."""
        self._expected = messages

    async def receive(self) -> Tally:
        """Check received messages until all expected ones are here, and one more fetch is empty.

        If some are missing, it ends after `PATIENCE_S` without a message.
        """
        checker, last = self._checker, time.monotonic()
        while True:
            messages = await self._messager.fetch_messages(timeout=TICK_S)
            if len(messages):
                last = time.monotonic()
                checker.take(messages.data, messages.from_ids, messages.to_ids, messages.sent_at, time.time())
            elif self._expected is None:
                last = time.monotonic()
            elif checker.received >= self._expected or time.monotonic() - last > PATIENCE_S:
                return checker.tally

    async def exchange(self, own: AgentId, other: AgentId, rounds: int, *, first: bool) -> list[float]:
        """Send one message and receive one, in turn with another worker; return the latencies in s.

        Only one message is in flight at any time. Raises MessagingError if one is blocked or does not arrive.
        """
        channel, found = self._messager.get_agent_chat_channel(other), []
        for number in range(2 * rounds):
            if first == (number % 2 == 0):
                receipt = await self._messager.send_message(channel, {"round": number}, own, other)
                if not receipt:
                    raise MessagingError(f"a message to measure latency with was not sent: {receipt!r}")
                continue
            messages = await self._messager.fetch_messages(timeout=PATIENCE_S)
            now = time.time()
            if not len(messages):
                raise MessagingError(f"a message to measure latency with did not arrive within {PATIENCE_S:g} s")
            found.append(now - messages[0].sent_at)
        return found
