"""Expansion of broadcasts: each row of a broadcast becomes one row for each of its hearers."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId, escaped
from ray_messaging.audiences.cache import EVERYBODY
from ray_messaging.audiences.edges import Edges
from ray_messaging.audiences.folding import kept_places
from ray_messaging.audiences.member_edges import MemberEdges
from ray_messaging.audiences.source import LocalFolder
from ray_messaging.errors import FrameError, LogError, UnknownName
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.folder_records import read_agents
from ray_messaging.eventlog.reading.filters import Filters
from ray_messaging.eventlog.stored_audiences import audiences_of
from ray_messaging.model.columns import INT, STR, IdColumn
from ray_messaging.model.extension import AudiencePairs

PIECE_PAIRS = 2**20
NEEDED = (
    "from_id", "from_name", "to_id", "to_name", "channel", "subtopic", "audience", "audience_version", "pairs",
    "hearing_agents", "kept_pairs",
)  # fmt: skip


class RowHearers(NamedTuple):
    """Hearers of broadcasts. For each hearer, `rows` has the number of the table row whose broadcast the hearer hears.

    The numbers are ascending.
    """

    rows: NDArray[np.intp]
    hearers: IdColumn

    def to(self, recipients: Sequence[AgentId | None]) -> "RowHearers":
        """Return a copy with only those hearers that are among `recipients`."""
        near = np.isin(self.hearers.values, np.array([each for each in recipients if isinstance(each, int)], np.int64))
        if self.hearers.kinds is not None:
            names = [code for code, name in enumerate(self.hearers.strings) if name in recipients]
            named = self.hearers.kinds == STR
            near = np.where(named, np.isin(self.hearers.values, names), near & (self.hearers.kinds == INT))
        return RowHearers(self.rows[near], self.hearers.take(near))


class Expansion:
    """A search for the hearers of a log's broadcasts, by means of the audiences in the log's folder.

    Audiences are cached.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._edges: dict[tuple[AudiencePairs, str], Edges] = {}
        self._digests: dict[AudiencePairs, bytes] = {}

    @cached_property
    def _audiences(self) -> LocalFolder:
        return audiences_of(self._folder)

    def expanded(self, part: pa.Table, filters: Filters) -> Iterator[pa.Table]:
        """Yield the matching rows of a table, in order, with one row for each hearer of a broadcast.

        A table with broadcasts is expanded in pieces of about PIECE_PAIRS rows.

        Args: `part` must have the columns NEEDED. The caller has chosen its rows by all fields of the query, except
        those about the recipient, which are applied here.

        Raises: LogError if the hearers of a broadcast are not known.
        """
        part = part.combine_chunks()
        pairs = part["pairs"].fill_null(0).to_numpy()
        if not pairs.any():
            yield from _matching(part, filters)
            return
        ends, low = np.cumsum(np.maximum(pairs, 1)), 0
        while low < len(part):
            before = int(ends[low - 1]) if low else 0
            high = max(low + 1, int(np.searchsorted(ends, before + PIECE_PAIRS, side="right")))
            piece = self._piece(part.slice(low, high - low).combine_chunks(), filters.recipients)
            yield from _matching(piece, filters)
            low = high

    def _piece(self, part: pa.Table, recipients: Sequence[AgentId | None] | None) -> pa.Table:
        said = np.flatnonzero(part["pairs"].is_valid().to_numpy())
        if not len(said):
            return part
        found = self.hearers(part)
        # The hearers are filtered first, so that no row is made for a hearer that does not match.
        if recipients is not None:
            found = [each.to(recipients) for each in found]
        others = np.setdiff1d(np.arange(len(part)), said)
        rows = np.concatenate([others, *(each.rows for each in found)])
        order = np.argsort(rows, kind="stable")
        table = part.take(pa.array(rows[order]))
        ids = [
            pa.concat_arrays([_ids(part, others, end), *(_column(each.hearers, end) for each in found)])
            for end in _ENDS
        ]
        for name, column in zip(_ENDS, ids, strict=True):
            table = _replaced(table, name, column.take(pa.array(order)))
        return _replaced(table, "channel", _channels(table))

    def hearers(self, part: pa.Table) -> list[RowHearers]:
        """Return the hearers of all broadcasts in a table, which must have the columns NEEDED.

        Raises: LogError if the hearers of a broadcast are not known.
        """
        groups: dict[tuple[AudiencePairs, str], list[int]] = {}
        names, versions, agents = (part[name].to_pylist() for name in NEEDED[6:8] + NEEDED[9:10])
        for row in np.flatnonzero(part["pairs"].is_valid().to_numpy()).tolist():
            groups.setdefault((AudiencePairs(names[row], versions[row]), agents[row]), []).append(row)
        return [self._hearers(part, audience, digest, rows) for (audience, digest), rows in groups.items()]

    def _hearers(self, part: pa.Table, audience: AudiencePairs, digest: str, rows: Sequence[int]) -> RowHearers:
        places = pa.array(rows)
        counts, kept = part["pairs"].take(places).to_numpy(), part["kept_pairs"].take(places).to_pylist()
        numbers, names = (part[name].take(places).to_pylist() for name in ("from_id", "from_name"))
        from_ids = IdColumn.of([number if name is None else name for number, name in zip(numbers, names, strict=True)])
        edges = self._toward(audience, digest)
        whole = edges.counts(from_ids)
        at, hearers = edges.expand(from_ids)
        starts = np.cumsum(whole) - whole
        stay = np.ones(len(at), np.bool_)
        for row in [row for row, some in enumerate(kept) if some is not None]:
            own = slice(starts[row], starts[row] + whole[row])
            stay[own] = False
            stay[starts[row] + kept_places(kept[row], int(whole[row]))] = True
        if not stay.all():
            at, hearers = at[stay], hearers.take(stay)
        if not np.array_equal(np.bincount(at, minlength=len(rows)), counts):
            raise self._unknown(audience, "the audience's files give other numbers of hearers than the log has")
        return RowHearers(np.asarray(rows)[at], hearers)

    def audience_digest(self, name: str, version: int) -> bytes:
        """Return the hash of an audience's pairs, or b"" for EVERYBODY; raise LogError if the pairs cannot be read."""
        audience = AudiencePairs(name, version)
        if audience not in self._digests:
            self._digests[audience] = b"" if audience == EVERYBODY else self._read(audience).digest
        return self._digests[audience]

    def _read(self, audience: AudiencePairs) -> Edges:
        try:
            return self._audiences.read(*audience)
        except (UnknownName, FrameError, OSError) as error:
            raise self._unknown(audience, str(error)) from error

    def _toward(self, audience: AudiencePairs, digest: str) -> Edges:
        key = audience, digest
        if key not in self._edges:
            agents = read_agents(self._folder, digest)
            if agents is None:
                raise self._unknown(audience, f"the folder lacks a set of agents, whose hash is {digest}")
            everybody = audience == EVERYBODY
            self._edges[key] = MemberEdges.everybody(agents) if everybody else self._read(audience).toward(agents)
        return self._edges[key]

    def _unknown(self, audience: AudiencePairs, why: str) -> LogError:
        return LogError(
            f"the hearers of audience {audience.name!r}, version {audience.version}, are not known in the event log's "
            f"folder {self._folder.where}: {why}. Leave out expand to get one row for each broadcast",
            path=self._folder.where,
        )


_ENDS = ("to_id", "to_name")


def _ids(part: pa.Table, rows: NDArray[np.intp], name: str) -> pa.Array:
    return part[name].take(pa.array(rows)).combine_chunks()


def _column(ids: IdColumn, name: str) -> pa.Array:
    if name == "to_id":
        return pa.array(ids.values, pa.int64(), mask=None if ids.kinds is None else ids.kinds != INT)
    if ids.kinds is None:
        return pa.nulls(len(ids), pa.string())
    named = ids.kinds == STR
    codes = pa.array(np.where(named, ids.values, 0), mask=~named)
    return pa.array(ids.strings, pa.string()).take(codes)


def _replaced(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    place = table.column_names.index(name)
    return table.set_column(place, table.schema.field(place), column)


def _channels(table: pa.Table) -> pa.Array:
    """Return the channels of all rows. The row of a hearer has the channel of the hearer."""
    channel = table["channel"].combine_chunks()
    heads = pc.replace_substring_regex(channel, ":audiences:.*", ":agents:")
    names = table["to_name"].combine_chunks().dictionary_encode()
    forms = pa.array(map(escaped, names.dictionary.to_pylist()), pa.string()).take(names.indices)
    ends = pc.coalesce(forms, table["to_id"].combine_chunks().cast(pa.string()))
    made = pc.binary_join_element_wise(heads, ends, ":", table["subtopic"].combine_chunks(), "")
    return pc.if_else(table["pairs"].is_valid().combine_chunks(), made, channel)


def _matching(piece: pa.Table, filters: Filters) -> Iterator[pa.Table]:
    """Yield one table with the matching rows of a piece of a table; yield nothing if no row matches."""
    condition = filters.of_recipient(piece.schema)
    found = piece if condition is None else piece.filter(condition)
    if len(found):
        yield found
