"""Extensions of batches: joined ones say what their parts say."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.extensions import extensions, told

from ray_messaging.model.extension import Extension


@given(extensions(6), st.lists(st.lists(st.integers(0, 5)), min_size=1, max_size=4))
def test_joined(extension, parts):
    extension.attempt, extension.deliver = 0, None  # what an attempt at a step sends is not joined
    taken = [(extension.take(np.array(rows, np.intp)), len(rows)) for rows in parts]
    whole = Extension.joined(taken)
    assert {part.kind for part, _ in taken} == {extension.kind} == {whole.kind}
    assert told(whole) == told(extension, [row for rows in parts for row in rows])
    assert Extension.joined([]) is None


def test_extensions_that_differ_have_other_kinds_in_an_order():
    asks = np.arange(2) == 1
    several = [Extension(), Extension(reply_mailbox="west"), Extension(expects_answer=asks), Extension(failed=True)]
    assert len(sorted({each.kind for each in several})) == len(several)
