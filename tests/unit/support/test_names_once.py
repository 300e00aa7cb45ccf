"""A name leads to one place: no file name and no class name occurs twice in the package."""

import ast
from collections import Counter
from pathlib import Path

import ray_messaging

PACKAGE = Path(ray_messaging.__file__).parent
FILES = [path for path in PACKAGE.rglob("*.py") if path.stem not in {"__init__", "__main__"}]
# Classes of `compat` have the names of the systems whose classes they replace.
OWN = [path for path in FILES if path.relative_to(PACKAGE).parts[0] != "compat"]


def repeated(names):
    """Return the names that occur more than once."""
    return [name for name, count in Counter(names).items() if count > 1]


def classes_of(path):
    """Return the names of the classes in a file."""
    return [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]


def test_no_file_name_occurs_twice():
    assert len(FILES) > 300
    assert repeated(path.name for path in FILES) == []


def test_no_class_name_occurs_twice():
    names = [name for path in OWN for name in classes_of(path)]
    assert len(names) > 500
    assert repeated(names) == []
