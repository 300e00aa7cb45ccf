"""What a call depends on: equal contents have one digest, other contents another one, and the rest is refused."""

import asyncio
import contextlib
import enum
import functools
import os
import random
import re
import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pydantic
import pytest

from ray_messaging import by_content
from ray_messaging.errors import ConfigError
from ray_messaging.model.call_content import content_digest_of, told_by

ENDINGS = frozenset(("gpt", "llama", "mistral"))
CLIENT = asyncio.Lock  # a class of a library; an object of it cannot be told


def digest(function, *args, uses=None, **kwargs):
    return content_digest_of(function, args, kwargs, uses)


def made(body, **outside):
    """Return the function `ask` of a source."""
    space = {"__name__": "program", **outside}
    exec(compile(body, "program.py", "exec"), space)
    return space["ask"]


SOURCE = """
MODEL = "small"
def prompt(text):
    return f"Answer: {text}"
def ask(text, temperature=0.5, *, top=1):
    return MODEL, prompt(text), temperature, top, text in {"a", "b", "c"}
"""


def test_comments_and_lines_do_not_count():
    commented = "# a model\n\n" + SOURCE.replace("def prompt", "# how it is asked\ndef prompt")
    assert digest(made(SOURCE), "x") == digest(made(commented), "x")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"small"', '"large"'),
        ("Answer", "Reply"),
        ("temperature=0.5", "temperature=0.7"),
        ("top=1", "top=2"),
        ("return MODEL", "return 1, MODEL"),
        ('"c"', '"d"'),
    ],
)
def test_what_the_function_uses_counts_wherever_it_is_written(before, after):
    assert digest(made(SOURCE), "x") != digest(made(SOURCE.replace(before, after)), "x")


class Answer(pydantic.BaseModel):
    mood: int


class Reply(pydantic.BaseModel):
    mood: float


@dataclass
class Model:
    name: str
    cost: float = 0.1

    def ask(self, text):
        return self.name, self._prompt(text)

    def _prompt(self, text):
        return text.upper()


def ask(text, *more, **options):
    return text, more, options


@pytest.mark.parametrize(
    "others",
    [
        [("x",), ("y",), (1,), (1.0,), (True,), (None,), (["x"],), (("x",),), ({"x": 1},), ({"x"},), (2**70,), (b"x",)],
        [(Answer,), (Reply,), (Answer(mood=1),), (Answer(mood=2),), (Model("a"),), (Model("b"),)],
        [(Model("a").ask,), (Model("b").ask,), (functools.partial(ask, 1),), (functools.partial(ask, 2),), (len,)],
        [(re.compile("a"),), (re.compile("b"),), (re.compile("a", re.IGNORECASE),)],
    ],
)
def test_other_arguments_are_other_calls(others):
    digests = [digest(ask, *each) for each in others]
    assert len({*digests}) == len(digests)
    assert [digest(ask, *each) for each in others] == digests


def test_dicts_and_sets_count_in_any_order():
    assert digest(ask, {"a": 1, "b": 2}, top={1, 2}) == digest(ask, {"b": 2, "a": 1}, top={2, 1})


def test_closures_defaults_and_the_objects_of_methods_count():
    def closed(name):
        async def ask_it(text):
            return name, text

        return ask_it

    assert digest(closed("small"), "x") == digest(closed("small"), "x") != digest(closed("large"), "x")
    assert digest(Model("a").ask, "x") == digest(Model("a").ask, "x") != digest(Model("b").ask, "x")
    assert digest(Model("a").ask, "x") != digest(Model("a", cost=0.2).ask, "x")


class Counted:
    """A decorator that is an object."""

    def __init__(self, function, temperature):
        functools.update_wrapper(self, function)
        self.temperature = temperature

    def __call__(self, prompt):
        return self.__wrapped__(prompt), self.temperature


class Slotted:
    __slots__ = ("name",)


class Client(Slotted):
    def __init__(self, name):
        self.name = name

    def ask(self, prompt):
        return self.name


class Names(dict):
    def ask(self, prompt):
        return self["name"]


class Words(list):
    def ask(self, prompt):
        return self[0]


class Failure(Exception):
    def ask(self, prompt):
        return self.args


class Chance(random.Random):
    def ask(self, prompt):
        return self.random()


class Settings(pydantic.BaseModel):
    key: str = pydantic.Field("", exclude=True)
    _name: str = pydantic.PrivateAttr("a")

    def ask(self, prompt):
        return self._name


def one(prompt):
    return 1


def two(prompt):
    return 2


def by_tools(tools):
    return lambda name: tools[name](name)


def with_attribute(model):
    ask = made("def ask(prompt):\n    return ask.model")
    ask.model = model
    return ask


def of_settings(name):
    settings = Settings()
    settings._name = name
    return settings.ask


def of_model(text):
    class Answer(pydantic.BaseModel):
        mood: str = ""

        @pydantic.field_validator("mood")
        @classmethod
        def cleaned(cls, mood):
            return text

    return by_tools(Answer)


def of_enum(text):
    class Mood(enum.Enum):
        SAD = 1

        def prompt(self):
            return text

    return by_tools(Mood)


def decorated(decorator, answer):
    return decorator(made(f"def ask(prompt):\n    return {answer}"))


@pytest.mark.parametrize(
    ("function", "other"),
    [
        (Counted(one, 0.1), Counted(one, 0.9)),
        (Client("a").ask, Client("b").ask),
        (Names(name="a").ask, Names(name="b").ask),
        (Words(["a"]).ask, Words(["b"]).ask),
        (Failure("a").ask, Failure("b").ask),
        (Chance(1).ask, Chance(2).ask),
        (of_settings("a"), of_settings("b")),
        (Settings(key="a").ask, Settings(key="b").ask),
        (of_model("a"), of_model("b")),
        (of_enum("a"), of_enum("b")),
        (with_attribute("a"), with_attribute("b")),
        (by_tools({"a": one, "b": two, "c": one}), by_tools({"b": two, "a": one, "c": two})),
        (decorated(contextlib.contextmanager, 1), decorated(contextlib.contextmanager, 2)),
        (decorated(functools.singledispatch, 1), decorated(functools.singledispatch, 2)),
    ],
)
def test_all_that_an_object_or_a_decorator_has_counts(function, other):
    assert digest(function, "x") != digest(other, "x")


FORMS = """
import dataclasses, msgspec, pydantic, typing
def ask(prompt):
    return Form
"""


@pytest.mark.parametrize(
    ("base", "field"),
    [
        ("pydantic.BaseModel", "model: typing.ClassVar[str] = {}"),
        ("pydantic.BaseModel", "_model: str = {}"),
        ("pydantic.BaseModel", "_model: str = pydantic.PrivateAttr(default_factory=lambda: {})"),
        ("pydantic.BaseModel", "model: str = pydantic.Field(default_factory=lambda: {})"),
        ("pydantic.BaseModel", "model: typing.Annotated[str, pydantic.AfterValidator(lambda given: {})]"),
        ("msgspec.Struct", "model: str = {}"),
        ("msgspec.Struct", "first: int\n    model: str = msgspec.field(default_factory=lambda: {})"),
        ("object", "model: str = dataclasses.field(default_factory=lambda: {})"),
    ],
)
def test_all_fields_of_a_class_of_data_count(base, field):
    """A model's class variables and factories, and a struct's defaults, did not; a dataclass's factory was refused."""
    kind = "@dataclasses.dataclass\n" if base == "object" else ""
    same, again, other = (
        digest(made(f"{FORMS}{kind}class Form({base}):\n    {field.format(repr(name))}"), "x")
        for name in ("small", "small", "large")
    )
    assert same == again
    assert same != other


@pytest.mark.parametrize("line", ["import settings", "from settings import MODEL", "import settings as other"])
def test_a_module_that_the_function_imports_itself_counts(tmp_path, monkeypatch, line):
    name = line.split()[-1] if "from" not in line else ""
    ask = made(f"def ask(prompt):\n    {line}\n    return {name and name + '.'}MODEL")
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for model in ("small", "larger"):
        (tmp_path / "settings.py").write_text(f"MODEL = {model!r}\n")
        monkeypatch.delitem(sys.modules, "settings", raising=False)
        found.append(digest(ask, "x"))
    assert found[0] != found[1]


def test_a_constant_of_an_own_module_counts(tmp_path, monkeypatch):
    (tmp_path / "own_settings.py").write_text("MODEL = 'small'\nOTHER = object()\n")
    monkeypatch.syspath_prepend(tmp_path)
    function = made("import own_settings\ndef ask(text):\n    return own_settings.MODEL, text\n")
    before = digest(function, "x")
    sys.modules["own_settings"].MODEL = "large"
    assert digest(function, "x") != before
    del sys.modules["own_settings"]


def test_a_client_of_a_library_is_told_by_its_address():
    httpx = pytest.importorskip("httpx")
    source = "def ask(text):\n    return client.post('/chat', text)\n"
    here, there = (made(source, client=httpx.Client(base_url=url)) for url in ("http://a", "http://b"))
    again = made(source, client=httpx.Client(base_url="http://a"))
    assert digest(here, "x") == digest(again, "x") != digest(there, "x")


LOCK = asyncio.Lock()


def ask_locked(text):
    return LOCK, text


def ask_environment(text):
    return os.environ["MODEL"], text


class Holder:
    def __init__(self, lock):
        self.client = SimpleNamespace(lock=lock)

    def ask(self, text):
        return self.client, text


@pytest.mark.parametrize(
    ("function", "args", "text"),
    [
        (ask_locked, ("x",), r"the function's 'LOCK' is <asyncio.*function, uses="),
        (ask_environment, ("x",), r"the function's 'os.environ' reads the environment"),
        (Holder(asyncio.Lock()).ask, ("x",), r"the method's object\.client.* is "),
        (ask, (asyncio.Lock(),), r"because arguments\[0\] is <asyncio.*, which cannot be compared: pass plain values"),
        (ask, ({"a": [object()]},), r"because arguments\[0\]\['a'\]\[0\] is <object"),
    ],
)
def test_what_cannot_be_told_is_named_with_what_to_do(function, args, text):
    with pytest.raises(ConfigError, match=text + r".*by_content\(function, sample=None"):
        digest(function, *args)


def test_uses_stands_for_objects_and_still_the_code_counts():
    locks = [Holder(asyncio.Lock()) for _ in range(2)]
    assert digest(locks[0].ask, "x", uses="small") == digest(locks[1].ask, "x", uses="small")
    assert digest(locks[0].ask, "x", uses="small") != digest(locks[0].ask, "x", uses="large")
    assert digest(made(SOURCE), "x", uses=1) != digest(made(SOURCE.replace("Answer", "Reply")), "x", uses=1)
    with pytest.raises(ConfigError, match="because arguments"):
        digest(ask, object(), uses="small")


def test_functions_that_call_each_other_have_a_content():
    source = "def ask(n):\n    return other(n - 1) if n else 0\ndef other(n):\n    return ask(n)\n"
    assert digest(made(source), 3) == digest(made(source), 3)
    endless = []
    endless.append(endless)
    with pytest.raises(ConfigError, match="cannot tell"):
        digest(ask, endless)


@pytest.mark.parametrize("sample", [0, -1, True, 1.5, "3"])
def test_a_sample_is_a_number_of_answers(sample):
    with pytest.raises(ConfigError, match=r"sample=.*at least 1, or None"):
        by_content(ask, sample=sample)


def test_a_function_by_content_can_be_called_and_wrapped():
    several = by_content(ask, sample=3, uses="small")
    assert several("x", top=1) == ask("x", top=1)
    assert told_by(functools.partial(several, "x")) == (3, "small")
    assert told_by(functools.partial(ask, "x")) == (1, None)


def test_the_digest_is_the_same_in_another_process():
    program = (
        "import runpy, sys; sys.path.insert(0, sys.argv[2]); space = runpy.run_path(sys.argv[1]);"
        "digest, made, model = (space[name] for name in ('digest', 'made', 'Model'));"
        "print(digest(made(space['SOURCE']), {'b', 'a'}), digest(model('a').ask, 'x'))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", program, __file__, "."],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
