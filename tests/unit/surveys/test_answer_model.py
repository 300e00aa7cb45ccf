"""The types of answers."""

import msgspec
import pytest

from ray_messaging import ConfigError
from ray_messaging.surveys.answer_model import AnswerModel


class Pair(msgspec.Struct, array_like=True):
    one: int


def test_a_struct_that_is_an_array_is_no_type_of_answers():
    with pytest.raises(ConfigError, match="it is a JSON array, and an answer is an object"):
        AnswerModel.of(Pair)
