"""The table of fates is the only place that lists them, and keeps their codes, which frames, notes and logs have."""

import ast
from pathlib import Path

import ray_messaging
from ray_messaging.model.fates import FATES, IS_SENT, IS_STORED, NAMES, UNKNOWN, facts_of


def test_codes_and_what_they_say():
    assert FATES[:4] == ("delivered", "published", "undeliverable", "blocked")
    assert IS_SENT[:4].tolist() == [True, True, False, False]
    assert IS_STORED[:4].tolist() == [True, False, False, False]
    assert (NAMES[UNKNOWN], IS_SENT[UNKNOWN], facts_of("unknown").meaning) == ("unknown", False, "")


def texts_of(path):
    """Return the texts in the code of a file. A docstring is one text, so a fate that it names is not one of them."""
    return {each.value for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.Constant)}


def test_only_the_table_lists_fates():
    package = Path(ray_messaging.__file__).parent
    listing = [path for path in package.rglob("*.py") if len(texts_of(path) & {*FATES}) > 1]
    assert [str(path.relative_to(package)) for path in listing] == ["model/fates.py"]
