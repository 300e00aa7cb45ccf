"""Objects that cannot go to another process: the part that is at fault is named."""

import functools
import pickle
import threading

import pytest

from ray_messaging.cluster.unpicklable import dumped, sent, unpicklable
from ray_messaging.errors import ConfigError

LOCK = threading.Lock()


class Client:
    def __init__(self):
        self.pools = [{"size": 3}, {"lock": threading.Lock()}]

    def ask(self, me, inbox):
        return self.pools


class Broken:
    def __reduce__(self):
        raise ZeroDivisionError("in reduce")


def closure(lock, depth=0):
    def person(me, inbox):
        person, depth  # noqa: B018 - it may call itself, and takes variables that can be pickled
        with lock:
            pass

    return person


@functools.cache
def with_a_cache(n):
    return n


def with_default(me, inbox, lock=LOCK):
    pass


def with_a_global(me, inbox):
    def inner():
        return LOCK

    return inner


def by_value(function):
    """Return a copy of a function that is pickled by value, as those of a notebook are."""
    made = type(function)(function.__code__, globals(), function.__name__, function.__defaults__, function.__closure__)
    made.__module__ = "__main__"
    return made


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (closure(threading.Lock()), "its 'lock'"),
        (by_value(with_default), r"its '__defaults__\[0\]'"),
        (by_value(with_a_global), "its 'LOCK'"),
        (functools.partial(closure(threading.Lock()), 3), "its 'lock'"),
        (Client(), r"its \"pools\[1\]\['lock'\]\""),
        (Client().ask, r"its \"pools\[1\]\['lock'\]\""),
        ({"client": Client()}, r"its \"\['client'\].pools\[1\]\['lock'\]\""),
        (threading.Lock(), "an object of type lock"),
    ],
)
def test_the_part_that_cannot_be_pickled_is_named(value, place):
    with pytest.raises(ConfigError, match=f"^the model .*{place} cannot be pickled .TypeError: .*lock") as caught:
        sent("the model", value, dumped)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_an_object_that_raises_when_it_is_pickled_is_named_one_that_can_be_is_sent_and_other_errors_pass():
    assert unpicklable([1, Broken()]) == "its '[1]' cannot be pickled (ZeroDivisionError: in reduce)"
    assert sent("the model", [1], len) == 1
    with pytest.raises(TypeError, match="has no len"):
        sent("the model", 1, len)


def test_a_function_keeps_the_name_of_its_file():
    """So do the functions in it: errors name the place."""
    found = pickle.loads(dumped(by_value(with_a_global_number)))
    for function in (found, found()):
        assert function.__code__.co_filename == __file__
    assert found()() == 3


NUMBER = 3


def with_a_global_number():
    def inner():
        return NUMBER

    return inner


def test_a_function_of_the_program_with_a_cache_goes_to_another_process():
    """The process had no such function: "Can't get attribute 'fib' on <module '__main__' (built-in)>"."""
    text = "import functools\n\n@functools.lru_cache(maxsize=9)\n"
    text += "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n"
    names = {"__name__": "__main__"}
    exec(text, names)
    there = pickle.loads(dumped(names["fib"]))
    assert (there(10), there.cache_parameters()["maxsize"], names["fib"].cache_info().misses) == (55, 9, 0)
    assert pickle.loads(dumped(with_a_cache)) is with_a_cache
