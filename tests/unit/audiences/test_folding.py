"""Folding: any rows of any broadcasts come back from their frame as they were."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batches import batch_to

from ray_messaging.audiences.building import build_edges
from ray_messaging.audiences.folding import agents_digest, encode_kept, fold, kept_places, spread, unfold
from ray_messaging.audiences.member_edges import MemberEdges
from ray_messaging.errors import FrameError
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.extension import AudiencePairs, Extension
from ray_messaging.wire.frames import decode, encode

AGENTS = st.integers(0, 8)
PAIRS = st.lists(st.tuples(AGENTS, AGENTS), min_size=1, max_size=60)


def broadcasts(senders):
    lines = PayloadColumn.of([b'{"n":%d}' % row for row in range(len(senders))])
    extension = Extension(audience=AudiencePairs("friends", 2))
    return batch_to([None] * len(senders), senders, first=40, lines=lines, extension=extension)


def rows_of(batch):
    numbers = range(batch.rows) if batch.numbers is None else batch.numbers.tolist()
    columns = (batch.from_ids.tolist(), batch.to_ids.tolist(), batch.lines.by_row, numbers)
    return [*zip(*columns, strict=True)]


@given(st.data(), PAIRS, st.lists(AGENTS, min_size=1, max_size=8), st.sets(AGENTS), st.booleans())
def test_what_is_folded_unfolds(data, graph, senders, mine, members):
    edges = MemberEdges.among(AgentSet.of({b for _, b in graph})) if members else build_edges([np.array(graph)])
    agents = AgentSet.of(mine)
    pairs = spread(broadcasts(senders), edges)
    there = np.flatnonzero([agent in agents for agent in pairs.to_ids.tolist()])
    chosen = data.draw(st.sets(st.sampled_from(there.tolist()))) if len(there) else set()
    rows = np.array(sorted(chosen), np.intp)
    folded = decode(encode(fold(pairs, rows, there, agents_digest(agents))[0]))
    assert folded.messages == len(rows)
    assert folded.rows == len({row[3] for row in rows_of(pairs.take(rows))})
    found = unfold(folded, edges.toward(agents))
    assert rows_of(found) == rows_of(pairs.take(rows))
    assert found.fold is None
    assert found.extension.audience == ("friends", 2)


@given(st.lists(st.booleans(), max_size=200), st.binary(max_size=40))
def test_kept_pairs_come_back_and_garbage_is_refused(marks, garbage):
    places = np.flatnonzero(marks)
    kept = encode_kept(places, len(marks))
    assert not kept or kept_places(kept, len(marks)).tolist() == places.tolist()
    assert len(kept) <= 1 + (len(marks) + 7) // 8
    try:
        found = kept_places(garbage, len(marks))
    except FrameError:
        return
    assert bool((np.diff(found) > 0).all())
    assert not len(found) or 0 <= found[0] <= found[-1] < len(marks)


def test_other_pairs_than_the_frame_counts_are_refused():
    edges, agents = build_edges([np.array([(0, 1), (0, 2)])]), AgentSet.of([1, 2])
    pairs = spread(broadcasts([0]), edges)
    folded = fold(pairs, np.arange(2), np.arange(2), agents_digest(agents))[0]
    with pytest.raises(
        FrameError, match=r"audience 'friends' .version 2.*give 2 pairs of sender and hearer, and the files here 1"
    ):
        unfold(folded, build_edges([np.array([(0, 1)])]))
