"""Extensions of batches: joined ones say what their parts say."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ray_messaging.model.extension import Audience, Extension
from ray_messaging.model.message_ids import MessageIdColumn


def of_rows(rows, *, steps=True, questions=True, mailbox="east"):
    ordinal = np.arange(rows, dtype=np.uint32)
    return Extension(
        ordinal=ordinal if steps else None,
        in_reply_to=MessageIdColumn.of([f"4-0-{row}" if row % 2 else None for row in range(rows)])
        if questions
        else None,
        expects_answer=ordinal % 3 == 0 if questions else None,
        reply_mailbox=mailbox,
        audience=Audience("friends", 2),
    )


@given(st.lists(st.integers(0, 4), min_size=1, max_size=4), st.booleans(), st.booleans())
def test_joined(counts, steps, questions):
    parts = [(of_rows(rows, steps=steps, questions=questions), rows) for rows in counts]
    assert len({part.kind for part, _ in parts}) == 1
    whole = Extension.joined(parts)
    assert whole.kind == parts[0][0].kind
    assert (whole.reply_mailbox, whole.audience) == ("east", ("friends", 2))
    if steps:
        assert whole.ordinal.tolist() == [row for rows in counts for row in range(rows)]
    if questions:
        assert whole.in_reply_to.tolist() == [id_ for part, _ in parts for id_ in part.in_reply_to.tolist()]
        assert whole.expects_answer.tolist() == [asks for part, _ in parts for asks in part.expects_answer.tolist()]


def test_nothing_joined_is_nothing():
    assert Extension.joined([]) is None


def test_extensions_that_differ_have_other_kinds_in_an_order():
    several = [Extension(), of_rows(2), of_rows(2, mailbox="west"), of_rows(2, questions=False)]
    assert len(sorted({each.kind for each in several})) == len(several)
