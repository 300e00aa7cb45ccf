"""The supervisor's amendments of broadcasts reach the frames that have these broadcasts."""

import numpy as np

from ray_messaging.audiences.folding import agents_digest, spread, unfold
from ray_messaging.audiences.member_edges import MemberEdges
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn, PayloadColumn, nobody
from ray_messaging.model.extension import AudiencePairs, Extension, Fold
from ray_messaging.steps.box_frames import BLOCKED, CHANGED, amended_broadcasts, amendments_of, unamended_broadcasts

AGENTS = AgentSet.of(range(6))
EDGES = MemberEdges.everybody(AGENTS)


def broadcasts(senders):
    rows = len(senders)
    return Batch(
        sender="g",
        epoch=1,
        first=0,
        rows=rows,
        from_ids=IdColumn.of(senders),
        to_ids=nobody(rows),
        topics=("chat",),
        step=0,
        lines=PayloadColumn.of([b"1"] * rows),
        extension=Extension(
            deliver=1,
            ordinal=np.zeros(rows, np.uint32),
            audience=AudiencePairs("*", 1),
            fold=Fold(agents_digest(AGENTS), rows * 5, b""),
        ),
    )


def amendment(frame, rows, sender, line=b"2", **labels):
    made = spread(frame, EDGES).take(np.array(rows))
    made.sender, made.numbers, made.extension.fold = sender, None, None
    made.lines = PayloadColumn.of([line] * len(rows))
    made.labels = {name: np.array(marked, np.uint32) for name, marked in labels.items()}
    return made


def pairs_of(frame):
    pairs = unfold(frame, EDGES)
    heard = zip(pairs.from_ids.tolist(), pairs.to_ids.tolist(), strict=True)
    return {pair: (pairs.lines.row(row), *pairs.labels_of(row)) for row, pair in enumerate(heard)}


def test_each_frame_gets_the_amendments_of_its_own_broadcasts():
    frames = [broadcasts([0, 1]), broadcasts([2]), broadcasts([3])]
    changed = amendment(frames[0], [1, 2, 6], CHANGED, odd=[1], even=[0, 1])
    blocked = amendment(frames[2], [0, 4], BLOCKED)
    for amendments in ([changed, blocked], [blocked, changed]):
        own = amendments_of(frames, amendments)
        assert [[each.rows for each in some] for some in own] == [[3], [], [2]]
        first, second, third = (amended_broadcasts(frame, EDGES, some) for frame, some in zip(frames, own, strict=True))
        assert second is frames[1]
        assert pairs_of(first) == pairs_of(frames[0]) | {
            (0, 2): (b"2", "even"),
            (0, 3): (b"2", "even", "odd"),
            (1, 2): (b"2",),
        }
        assert pairs_of(third).keys() == {(3, 1), (3, 2), (3, 4)}
        left = unamended_broadcasts(frames[0], EDGES, own[0])
        assert pairs_of(left).keys() == pairs_of(frames[0]).keys() - {(0, 2), (0, 3), (1, 2)}


def test_one_amendment_may_concern_several_frames():
    frames = [broadcasts([0]), broadcasts([1])]
    both = amendment(broadcasts([0, 1]), [0, 5, 6], CHANGED, odd=[0, 2])
    first, second = amendments_of(frames, [both])
    assert [first[0].rows, second[0].rows] == [1, 2]
    made = pairs_of(amended_broadcasts(frames[1], EDGES, second))
    assert made == dict.fromkeys([(1, 3), (1, 4), (1, 5)], (b"1",)) | {(1, 0): (b"2",), (1, 2): (b"2", "odd")}
