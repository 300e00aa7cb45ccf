"""Functions get the parameters of a run by name."""

import inspect

import pytest

from ray_messaging.errors import ConfigError
from ray_messaging.studies.by_name import bound, check_names, values_of
from ray_messaging.studies.design import design_of

(RUN,) = design_of({"chance": [0.5], "n": [3]}, 1, 7)
VALUES = values_of(RUN)


def test_a_function_gets_what_it_names_and_keeps_its_defaults():
    def person(me, inbox, chance, *, seed, other=4):
        return me, inbox, chance, seed, other

    assert bound(person, 2, VALUES)(1, 2) == (1, 2, 0.5, RUN.seed, 4)
    assert bound(lambda row: row, 0, VALUES)() == {"chance": 0.5, "n": 3}
    assert bound(lambda me, **all_of_them: all_of_them, 1, VALUES)(1) == {"chance": 0.5, "n": 3}
    assert bound(lambda me, inbox: me, 2, VALUES)(1, 2) == 1


def test_an_async_model_stays_one():
    async def person(me, inbox, *, chance):
        pass

    assert inspect.iscoroutinefunction(bound(person, 2, VALUES))


def test_a_parameter_that_no_function_takes_is_told():
    def person(me, inbox, *, chanse):
        pass

    with pytest.raises(ConfigError, match=r"model= takes 'chanse', which is not a parameter.*'chance' or 'n' or 'row'"):
        check_names({"model": (person, 2), "agents": (lambda n: n, 0)}, RUN.row)
    with pytest.raises(ConfigError, match="no function takes the parameter 'chance'"):
        check_names({"model": (lambda me, inbox: None, 2), "agents": (lambda n: n, 0)}, RUN.row)
    check_names({"model": (lambda me, inbox: None, 2), "shared": (lambda row: row, 0)}, RUN.row)
    check_names({"model": (lambda me, inbox, **row: None, 2)}, RUN.row)
