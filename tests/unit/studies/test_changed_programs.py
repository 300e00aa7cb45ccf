"""A study that goes on in a new process, in which the program or one of the user's modules has changed."""

import shutil
import subprocess
import sys

import pytest

FILES = {
    "program.py": """
import random
import sys
import numpy as np
import policies
import town.prices
from policies import Careful
from ray_messaging import Mean, batch_run, rules

def bold(me):
    return 1

def shy(me):
    return POLICIES["shy"] and 2

POLICIES = {"bold": [bold], "shy": (shy,), "names": {"a", "b", "c"}}

class Mild:
    def decide(self, me):
        return 3

class Milder(Mild):
    pass

class Wild:
    def decide(self, me):
        return 30

WILD, CAREFUL, SEEDED = Wild(), Careful(), np.random.default_rng(3)
NUMPYS, PYTHONS = np.random.default_rng(), random.Random()

class Words(rules.Rule):
    name = "words"

    def __init__(self):
        self.tests = {"rude": lambda text: "rude" in text}

    def check(self, message):
        return rules.ALLOW

def person(me, inbox):
    from town import streets

    moods = POLICIES["bold"][0](me), WILD.decide(me), CAREFUL.decide(me), policies.kind(me), Milder().decide(me)
    me.state["mood"] = sum(moods) + town.prices.price() + streets.LENGTH + SEEDED.random()

def numpys(me, inbox):
    me.state["mood"] = NUMPYS.random()

def pythons(me, inbox):
    me.state["mood"] = PYTHONS.random()

model = globals()[sys.argv[1]]
options = {"agents": 2, "until": 1, "rules": [Words()], "outcomes": Mean("mood"), "progress": False}
study = batch_run(model, folder="study", workers=1, **options)
print(study.to_pandas()["mood"].tolist())
""",
    "policies.py": """
from helpers import level

class Careful:
    def decide(self, me):
        return 4

def kind(me):
    return level()
""",
    "helpers.py": "def level():\n    return 5\n",
    "town/__init__.py": "",
    "town/prices.py": "from . import taxes\n\ndef price():\n    return taxes.TAX\n",
    "town/taxes.py": "TAX = 6\n",
    "town/streets.py": "from .lanes import *\n",
    "town/lanes.py": "LENGTH = 7\n",
    "plots.py": "COLOUR = 8\n",
}


def ran(folder, model="person"):
    """Run the program in a new process; return what it prints, or the last line of its error."""
    command = [sys.executable, folder / "program.py", model]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0 or "ConfigError" in ended.stderr, ended.stderr
    return (ended.stdout or ended.stderr).strip().rpartition("\n")[2]


@pytest.fixture(scope="module")
def once_begun(tmp_path_factory):
    folder = tmp_path_factory.mktemp("begun")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    assert ran(folder).startswith("[")
    return folder


@pytest.fixture
def begun(once_begun, tmp_path):
    """The folder of a program whose study has run."""
    return shutil.copytree(once_begun, tmp_path / "begun")


@pytest.mark.parametrize(
    ("file", "old", "new", "what"),
    [
        ("program.py", "return 1", "return 11", "'POLICIES' of person"),
        ("program.py", "and 2", "and 22", "'POLICIES' of person"),
        ("program.py", "return 30", "return 33", "'WILD' of person"),
        ("program.py", "return 3\n", "return 33\n", "the base Mild of Milder"),
        ("program.py", '"rude" in text', '"odd" in text', "'tests' of the rule 'words'"),
        ("policies.py", "return 4", "return 44", "'CAREFUL' of person"),
        ("policies.py", "level()", "-level()", "the source of the module policies"),
        ("helpers.py", "return 5", "return 55", "the source of the module helpers"),
        ("town/taxes.py", "6", "66", "the source of the module town.taxes"),
        ("town/lanes.py", "7", "77", "the source of the module town.lanes"),
    ],
)
def test_a_changed_function_is_told(begun, file, old, new, what):
    """The study had the results of the former function."""
    path = begun / file
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    said = ran(begun)
    assert f"ConfigError: {what}, which " in said
    assert "differs from that of the study in 'study', so its runs so far were made with the former one: pass" in said


def test_a_program_of_which_the_model_uses_nothing_that_has_changed_goes_on(begun):
    before = ran(begun)
    (begun / "plots.py").write_text("COLOUR = 88\n")
    (begun / "program.py").write_text(f"import plots\n{FILES['program.py']}")
    assert ran(begun) == before


@pytest.mark.parametrize("model", ["numpys", "pythons"])
def test_a_generator_without_a_seed_is_told_with_a_remedy(begun, model):
    """The study was refused in each new process, and the reason was not told."""
    (begun / "study" / "_study.json").unlink()
    ran(begun, model)
    said = ran(begun, model)
    assert f"ConfigError: the random generator '{model.upper()}' of {model}, which model= uses, differs" in said
    assert "give the generator a seed, or use me.rng" in said
