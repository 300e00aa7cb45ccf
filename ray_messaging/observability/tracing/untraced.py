"""An object that stands in for the tracer, and for a batch's spans, where nothing is traced."""

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from ray_messaging.observability.tracing.tracer import SentBatch, Tracer

_NO_SPAN = nullcontext()


class Untraced:
    """A tracer and spans whose methods do nothing, so that callers need not ask whether there is tracing."""

    def follow(self, *_: object) -> "Untraced":
        """Return spans of a batch that do nothing."""
        return self

    def sending(self, *_: object) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return _NO_SPAN

    def taken(self, *_: object) -> None:
        """Do nothing."""

    judging = handling = step = calling = sending
    asking = judged = writing = done = fetched = hold = committed = taken
    open = follow


UNTRACED: Final = Untraced()

AnyTracer: TypeAlias = "Tracer | Untraced"
AnySpans: TypeAlias = "SentBatch | Untraced"
