"""Checkpoints in the folder of the event log. A checkpoint is a copy of all data that the next step needs.

The run writes a checkpoint after every n-th step, as the Parquet file `_checkpoints/{step:08d}.parquet`. The number in
the name is the last step that the checkpoint includes. Each file is complete or absent.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

import pyarrow as pa
import pyarrow.parquet as pq

from ray_messaging.errors import ConfigError, LogError
from ray_messaging.eventlog.folder import CHECKPOINTS, Folder
from ray_messaging.transports.checkpoints import CopiedKey
from ray_messaging.transports.experiment_store import FORMAT

_SCHEMA = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("name", pa.large_binary(), nullable=False),
        pa.field("value", pa.large_binary(), nullable=False),
    ]
)
_STEP, _FORMAT = b"step", b"format"


def write_checkpoint(folder: Folder, step: int, copied: Sequence[CopiedKey]) -> None:
    """Write the checkpoint of a step, atomically and durably. Raises OSError if that fails.

    Args: `copied` has the server's keys with the values that they had after the step.
    """
    rows = [(each.key, each.kind, *pair) for each in copied for pair in each.content]
    columns = [*zip(*rows, strict=True)]
    facts = {_STEP: b"%d" % step, _FORMAT: b"%d" % FORMAT}
    table = pa.table([*map(pa.array, columns, _SCHEMA.types)], schema=_SCHEMA.with_metadata(facts))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", use_dictionary=["key", "kind"], write_page_checksum=True)
    folder.write_file(_file(step), sink.getvalue())


def read_checkpoint(folder: Folder, step: int) -> Iterator[CopiedKey]:
    """Yield the server's keys from the checkpoint of a step, each with the values that it had after the step.

    Raises: LogError if the checkpoint is damaged or absent; ConfigError if another version of ray_messaging wrote it in
    another format.
    """
    name = _file(step)
    data = folder.read_file(name)
    if not data:
        raise LogError(
            f"the checkpoint {folder.where}/{name} is missing or empty: copy it again from the run's folder, "
            "or fork at an earlier step",
            path=f"{folder.where}/{name}",
        )
    try:
        table = pq.read_table(pa.BufferReader(data), page_checksum_verification=True)
        if table.schema.metadata.get(_STEP) != b"%d" % step:
            raise ValueError(f"its metadata do not say that it belongs to step {step}")  # noqa: TRY301 - reported below
    except (OSError, pa.ArrowInvalid, ValueError, AttributeError) as error:
        where = f"{folder.where}/{name}"
        raise LogError(
            f"the checkpoint {where} is damaged or was cut short ({error}): copy it again if it is a copy, or move "
            "it away and fork at an earlier step",
            path=where,
        ) from error
    if (written := table.schema.metadata.get(_FORMAT, b"0")) != b"%d" % FORMAT:
        raise ConfigError(
            f"{folder.where}/{name} has data of format {written.decode()}, but this ray_messaging reads only format "
            f"{FORMAT}: fork with the version of ray_messaging that wrote it"
        )
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    for (key, kind), some in groupby(rows, lambda row: row[:2]):
        yield CopiedKey(key, kind, [(field, value) for _, _, field, value in some])


def _file(step: int) -> str:
    return f"{CHECKPOINTS}/{step:08d}.parquet"
