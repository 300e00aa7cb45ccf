"""Traffic: the messages of a trace or of a generated society, with sender, receiver, time and text."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.replay.trace_formats import TraceFile, reader_for


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Traffic:
    """Messages to replay, in the order of sending. They come from a trace file, or are generated.

    `agents` has every sender and receiver once; if they come from a file, in the order in which they first appear.
    `sources` and `targets` are the senders and receivers of n messages as indices into `agents`, int32 (n,). `times`
    are float64 (n,), unix seconds or sequence numbers, in any order. `texts` has one str for each message; None:
    messages have no texts.
    """

    name: str
    agents: list[AgentId]
    sources: NDArray[np.int32]
    targets: NDArray[np.int32]
    times: NDArray[np.float64]
    texts: list[str] | None

    def __len__(self) -> int:
        return len(self.sources)

    def __repr__(self) -> str:
        # The columns are left out, because they may have millions of rows, and names of real people.
        return f"Traffic(name={self.name!r}, messages={len(self)}, agents={len(self.agents)})"

    @property
    def senders(self) -> list[AgentId]:
        """Return the sender of each message. Each access builds a new list."""
        return [self.agents[place] for place in self.sources.tolist()]

    @property
    def receivers(self) -> list[AgentId]:
        """Return the receiver of each message. Each access builds a new list."""
        return [self.agents[place] for place in self.targets.tolist()]


def read_trace(
    path: str | os.PathLike[str],
    *,
    from_field: str | None = None,
    to_field: str | None = None,
    time_field: str | None = None,
    text_field: str | None = None,
) -> Traffic:
    """Read a SNAP edge list, a CSV file with a header or JSON lines, gzipped or plain.

    The extension (without .gz) decides the format: .txt, .edges, .edgelist and .tsv are edge lists, .csv is CSV, .jsonl
    and .ndjson are JSON lines. For any other extension the content decides. The columns of an edge list are `src`,
    `dst` and `time`, separated by tabs in a .tsv file and by white space in other files; without a third column the
    time is the row number from 0. `from_field` and `to_field` may be templates of plain fields, such as
    `{game}-{sender}`. Times are numbers, or ISO-8601 (without an offset: UTC), which become unix seconds. An id that
    spells an int64 becomes that int.

    Raises: TraceError if the file is not a valid trace. The error's `line` counts from 1, and is 0 if the file cannot
    be opened. ConfigError for a template with anything but plain fields.
    """
    requested = {"sender": from_field, "receiver": to_field, "time": time_field, "text": text_field}
    source = TraceFile(Path(path))
    columns = reader_for(source)(source, requested)
    sources, targets, times = (np.array(numbers) for numbers in (columns.sources, columns.targets, columns.times))
    return Traffic(source.stem, [*columns.places], sources, targets, times, columns.texts)
