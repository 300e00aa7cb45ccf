"""Checks whether payloads fit the schemas that the directory has for their subtopics."""

from collections.abc import Iterable, Iterator

import numpy as np

from ray_messaging.addressing.channels import AgentId
from ray_messaging.errors import ConfigError, PayloadMismatch
from ray_messaging.model.batch import Batch
from ray_messaging.model.schema import Misfitting, Schemas
from ray_messaging.sending.in_flight_batch import InFlightBatch, Rows


def check_batches(schemas: Schemas, batches: Iterable[Batch]) -> None:
    """Raise PayloadMismatch for the first payload that does not fit the schema of its subtopic."""
    first = 0
    for batch in batches:
        for _, error in _mismatches(schemas, batch, first):
            raise error
        first += batch.rows


def some_misfit(schemas: Schemas, in_flight: InFlightBatch) -> bool:
    """Return whether some payload of a batch does not fit its schema.

    If all payloads fit, record that the batch was checked.
    """
    try:
        found = next(_mismatches(schemas, in_flight.batch), None)
    except ConfigError:
        return True
    if found is None:
        in_flight.pending.checked = schemas.version
    return found is not None


def fitting(schemas: Schemas, in_flight: InFlightBatch, rows: Rows | None) -> Rows | None:
    """Give an error to each of the rows (None: all) whose payload does not fit its schema; return the other rows."""
    batch = in_flight.batch if rows is None else in_flight.batch.take(rows)
    try:
        for row, error in _mismatches(schemas, batch):
            some = np.arange(batch.rows) if row is None else np.array([row])
            some = some if rows is None else rows[some]
            if row is not None and (known := in_flight.row_in_call(int(some[0]))) is not None:
                error.row = known
                error.args = (f"row {error.row}: {error}",)
            in_flight.fail(some, error)
    except ConfigError as error:
        in_flight.fail(rows, error)
    return in_flight.still_open(np.arange(batch.rows) if rows is None else rows) if in_flight.errors else rows


def _mismatches(
    schemas: Schemas, batch: Batch, first: int | None = None
) -> Iterator[tuple[int | None, PayloadMismatch]]:
    """Yield each row whose payload does not fit its schema, with the error. Row None means that no payload fits.

    Args: `first` is the number of the batch's first row in the bulk send, or None if it is not known.
    """
    for number, topic in enumerate(batch.topics):
        schema = schemas.of(topic)
        if schema is None or batch.lines is None:
            continue
        rows = None if batch.topic is None else np.flatnonzero(batch.topic == number)
        for misfit in schema.misfits(batch.lines if rows is None else batch.lines.take(rows)):
            # The error is about all rows of this topic, but not about rows of other topics.
            if misfit.row is None and rows is not None:
                error = _mismatch(misfit, topic, batch.from_ids[int(rows[0])], None)
                yield from ((row, error) for row in rows.tolist())
                continue
            row = misfit.row if rows is None or misfit.row is None else int(rows[misfit.row])
            known = None if first is None or row is None else first + row
            yield row, _mismatch(misfit, topic, batch.from_ids[row or 0], known)


def _mismatch(misfit: Misfitting, subtopic: str, agent: AgentId | None, row: int | None) -> PayloadMismatch:
    where = "" if row is None else f"row {row}: "
    return PayloadMismatch(
        f"{where}the payload that agent {agent!r} sends does not fit the schema of subtopic {subtopic!r}: "
        f"{f'field {misfit.field!r}: ' if misfit.field else ''}{misfit.reason}",
        field=misfit.field,
        agent=agent,
        row=row,
        subtopic=subtopic,
    )
