"""Extensions of batches, any that a sender may make."""

import msgspec
import numpy as np
from hypothesis import strategies as st

from ray_messaging.model.extension import AudiencePairs, Extension, InHand
from ray_messaging.model.message_ids import MessageIdColumn

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
MESSAGE_ID = st.one_of(
    TEXT, st.integers(0, 2**70).map("a-3-{}".format), st.sampled_from(["5-0-7", "5-3-Ann", "-", "0"])
)

CHAIN = st.lists(
    st.builds(InHand, TEXT, MESSAGE_ID, st.none() | INT64 | TEXT, st.integers(0, 2**62 - 1)), max_size=3
).map(tuple)


@st.composite
def extensions(draw, rows):
    def column(strategy, dtype):
        return np.array(draw(st.lists(strategy, min_size=rows, max_size=rows)), dtype)

    several, asks, replies, caused = (draw(st.booleans()) for _ in range(4))
    ids = st.lists(st.none() | MESSAGE_ID, min_size=rows, max_size=rows)
    return Extension(
        attempt=draw(st.integers(0, 2**62 - 1)),
        deliver=column(INT64, np.int64) if several else draw(st.none() | INT64),
        ordinal=column(st.integers(0, 2**32 - 1), np.uint32) if draw(st.booleans()) else None,
        in_reply_to=MessageIdColumn.of(draw(ids)) if replies else None,
        expects_answer=column(st.booleans(), np.bool_) if asks else None,
        reply_mailbox=draw(st.sampled_from(["", "town.east"])),
        behind=draw(st.dictionaries(st.integers(0, rows - 1), CHAIN, max_size=3)) if rows else {},
        failed=draw(st.booleans()),
        caused_by=MessageIdColumn.of(draw(ids)) if caused else None,
        audience=draw(st.none() | st.builds(AudiencePairs, TEXT, st.integers(0, 2**62 - 1))),
    )


def told(extension, rows=None):
    """Return what an extension says, by default of all rows, as values that can be compared."""
    if extension is None:
        return None
    values = msgspec.structs.asdict(extension).items()
    found = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in values}
    if rows is not None:
        found = {
            name: [value[row] for row in rows] if isinstance(value, list) else value for name, value in found.items()
        }
        found["behind"] = {at: found["behind"][row] for at, row in enumerate(rows) if row in found["behind"]}
    return found
