"""A trace: messages with sender, receiver, time and text, in file order."""

import os
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ray_messaging.addressing.channels import AgentId
from ray_messaging.errors import ConfigError
from ray_messaging.replay.trace_formats import Source, reader_for


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Trace:
    """The messages of a trace, one row per message, in file order.

    `senders` and `receivers` are ids. `times` are float64, unix s or a sequence number, in any order. `texts` has one
    str per message; None: the trace has no texts.

    Raises: ConfigError if the columns differ in length.
    """

    senders: list[AgentId]
    receivers: list[AgentId]
    times: npt.NDArray[np.float64]
    texts: list[str] | None
    name: str

    def __post_init__(self) -> None:
        lengths = [len(self.senders), len(self.receivers), len(self.times)]
        lengths += [] if self.texts is None else [len(self.texts)]
        if len(set(lengths)) > 1:
            raise ConfigError(
                f"the columns of trace {self.name!r} differ in length: {lengths}; give one row per message"
            )

    def __len__(self) -> int:
        return len(self.senders)

    def __repr__(self) -> str:
        # Without the columns: they may have millions of rows, and real people's names.
        return f"Trace(name={self.name!r}, messages={len(self)}, texts={self.texts is not None})"

    @property
    def agents(self) -> list[AgentId]:
        """Return every sender and receiver once, in order of first appearance."""
        return list(dict.fromkeys(chain.from_iterable(zip(self.senders, self.receivers, strict=True))))


def read_trace(
    path: str | os.PathLike[str],
    *,
    from_field: str | None = None,
    to_field: str | None = None,
    time_field: str | None = None,
    text_field: str | None = None,
) -> Trace:
    """Read a SNAP edge list, a CSV file with a header or JSON lines, gzipped or plain.

    The extension (without .gz) selects the format: .txt, .edges, .edgelist, .tsv; .csv; .jsonl, .ndjson; for any other
    extension the content decides. The columns of an edge list are `src`, `dst` and `time`; without a third column the
    time is the row number from 0. `from_field` and `to_field` may be templates of plain fields, such as
    `{game}-{sender}`. Times are numbers, or ISO-8601 (without an offset: UTC), which become unix s. An id that spells
    an int64 is that integer.

    Raises: TraceError with `file` and `line` (from 1; 0 if the file cannot be opened) if the file is not a valid trace;
    ConfigError for a template that is not plain.
    """
    requested = {"sender": from_field, "receiver": to_field, "time": time_field, "text": text_field}
    source = Source(Path(path))
    columns = reader_for(source)(source, requested)
    return Trace(columns.senders, columns.receivers, np.array(columns.times), columns.texts, source.stem)
