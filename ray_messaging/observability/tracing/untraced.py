"""The object that is used in place of a tracer, and of the spans of a batch, if nothing is traced."""

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from ray_messaging.observability.tracing.tracer import SentBatch, Tracer

_NO_SPAN = nullcontext()


class Untraced:
    """Stand-in for `Tracer` and `SentBatch`, whose methods do nothing.

    With it, callers need not check whether there is tracing.
    """

    def follow(self, *_: object) -> "Untraced":
        """Return this object, as the spans of a batch."""
        return self

    def sending(self, *_: object) -> AbstractContextManager[None]:
        """Return a context manager that does nothing."""
        return _NO_SPAN

    def taken(self, *_: object) -> None:
        """Do nothing."""

    judging = handling = step = calling = sending
    asking = judged = writing = done = fetched = hold = committed = taken
    open = follow


UNTRACED: Final = Untraced()

AnyTracer: TypeAlias = "Tracer | Untraced"
AnySpans: TypeAlias = "SentBatch | Untraced"
