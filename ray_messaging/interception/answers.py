"""Answers that were given, for batches that are asked about again."""

import time
from collections import OrderedDict
from collections.abc import Mapping

from ray_messaging.frames import Batch
from ray_messaging.interception.verdicts import decode_verdicts, encode_verdicts

# How many senders' last answers are kept: a sender has one batch under way.
_REMEMBERED = 20_000


def key_of(batch: Batch) -> str:
    """Name a batch."""
    return f"{batch.sender} {batch.epoch} {batch.first} {len(batch)}"


class Answers:
    """Remember each sender's last answer, and for `keep_s` every answer that counted something.

    A batch that is asked about again, by a lost answer or after the interceptor's death, must not count twice.
    """

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._last: OrderedDict[str, tuple[str, bytes]] = OrderedDict()
        self._counted: OrderedDict[str, tuple[float, bytes]] = OrderedDict()

    def get(self, batch: Batch) -> bytes | None:
        """Return the answer to a batch, if it is known."""
        key = key_of(batch)
        last = self._last.get(batch.sender)
        if last is not None and last[0] == key:
            return last[1]
        return self.counted(key)

    def counted(self, key: str) -> bytes | None:
        """Return an answer that counted something."""
        found = self._counted.get(key)
        return None if found is None else found[1]

    def put(self, batch: Batch, answer: bytes) -> None:
        """Remember a sender's last answer."""
        self._last[batch.sender] = (key_of(batch), answer)
        self._last.move_to_end(batch.sender)
        if len(self._last) > _REMEMBERED:
            self._last.popitem(last=False)

    def count(self, key: str, answer: bytes) -> list[str]:
        """Remember an answer that counted something; return those whose time is over, which are forgotten here."""
        now = time.monotonic()
        self._counted[key] = (now, answer)
        over: list[str] = []
        while self._counted:
            oldest, (given_at, _) = next(iter(self._counted.items()))
            if given_at + self._keep_s > now:
                break
            del self._counted[oldest]
            over.append(oldest)
        return over

    def load(self, counted: Mapping[str, bytes], epoch: int) -> None:
        """Take over a predecessor's answers under our epoch: it has counted them."""
        now = time.monotonic()
        for key, answer in counted.items():
            verdicts = decode_verdicts(answer)
            fields = (getattr(verdicts, name) for name in verdicts.__struct_fields__[1:])
            self._counted[key] = (now, encode_verdicts(type(verdicts)(epoch, *fields)))
