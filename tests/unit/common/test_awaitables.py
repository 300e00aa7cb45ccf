"""Partials of users' functions, which are called as functions with other defaults."""

from functools import partial

import pytest

from ray_messaging.common.awaitables import is_async, without_partial


def by_name(me, inbox, *, chance, limit=7):
    return me, inbox, chance, limit


def by_place(me, inbox, chance, limit=7):
    return me, inbox, chance, limit


def any_name(me, inbox, **given):
    return me, inbox, given


def by_place_only(me, inbox, chance=1, /, **given):
    return me, inbox, chance, given


class Model:
    def __call__(self, me, inbox, chance):
        return me, inbox, chance


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (by_name, {"chance": 0.5}),
        (by_name, {"chance": 0.5, "limit": 9}),
        (by_place, {"chance": 0.5}),
        (by_place, {"chance": 0.5, "limit": 9}),
        (any_name, {"chance": 0.5}),
        (by_place_only, {"chance": 0.5}),
        (Model(), {"chance": 0.5}),
    ],
)
def test_a_partial_and_the_function_in_its_place_return_the_same(function, given):
    whole = partial(function, **given)
    assert without_partial(whole, 2)(1, 2) == whole(1, 2)


@pytest.mark.parametrize("function", [by_name, by_place])
def test_a_function_that_lacks_a_value_raises_the_same_error(function):
    whole = partial(function, limit=9)
    with pytest.raises(TypeError, match="chance") as expected:
        whole(1, 2)
    with pytest.raises(TypeError) as raised:
        without_partial(whole, 2)(1, 2)
    assert str(raised.value) == str(expected.value)


def test_the_function_is_called_without_the_partial_and_the_users_function_stays_as_it_is():
    def bound(me, inbox, *, chance=1):
        return chance, factor

    factor, bound.known = 3, "kept"
    found = without_partial(partial(bound, chance=2), 2)
    assert not isinstance(found, partial)
    assert (found(None, None), bound(None, None)) == ((2, 3), (1, 3))
    assert (found.__qualname__, found.__module__, found.known) == (bound.__qualname__, __name__, "kept")


def test_what_passes_arguments_by_place_or_is_no_partial_stays_as_it_is():
    for function in (by_name, partial(by_place, 1), partial(partial(by_place, 1), limit=9), print, None):
        assert without_partial(function, 2) is function


def test_an_async_function_stays_async():
    async def model(me, inbox, *, chance):
        return chance

    assert is_async(without_partial(partial(model, chance=1), 2))
