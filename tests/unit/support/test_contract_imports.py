"""Contracts use public names, the wire's own modules and tests/support, so that no change of the engine breaks one."""

import ast
from pathlib import Path

import pytest

import ray_messaging

CONTRACTS = Path(__file__).parents[2] / "contracts"
FILES = sorted(CONTRACTS.glob("*.py"))
# What users import beside the names of `ray_messaging` itself; see docs/api.md and docs/migrating.md.
PUBLIC = {"errors", "rules", "testing", "compat"}
WIRE = {"wire"}  # which contracts read and write as foreign programs do


def inner_names(source):
    """Return the modules and names of the package in a file's imports, and in its texts, that are not public."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= named if node.module == "ray_messaging" else {node.module}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " not in node.value:
            found.add(node.value)  # as monkeypatch.setattr("ray_messaging.x.y", ...) takes it
    public = {*ray_messaging.__all__, *PUBLIC, *WIRE}
    parts = {name: name.split(".") for name in found}
    return {name for name, part in parts.items() if part[0] == "ray_messaging" and {*part[1:2]} - public}


def inner_parts(source):
    """Return where a file reaches into an object: into a messager's engine, or into what begins with `_`."""
    return {
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute)
        and (node.attr == "engine" or (node.attr.startswith("_") and not node.attr.endswith("_")))
        and not (isinstance(node.value, ast.Name) and node.value.id == "self")
    }


def test_inner_names_are_found():
    assert inner_names("from ray_messaging.messager_engine import Engine") == {"ray_messaging.messager_engine"}
    assert inner_names("from ray_messaging import messager_engine, Messager") == {"ray_messaging.messager_engine"}
    assert inner_names("import ray_messaging.messager_engine as e") == {"ray_messaging.messager_engine"}
    assert inner_names("patch('ray_messaging.messager_engine._LEAVE_S', 1)") == {
        "ray_messaging.messager_engine._LEAVE_S"
    }
    assert not inner_names("from ray_messaging.wire.frames import decode\nimport ray_messaging\nlog('ray_messaging')")


def test_inner_parts_are_found():
    assert inner_parts("messager.engine.transport") == {"messager.engine"}
    assert inner_parts("group._caller") == {"group._caller"}
    assert not inner_parts("self._opened, answers._repr_html_(), messager.__aexit__(None)")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_contracts_reach_into_nothing(path):
    found = inner_parts(path.read_text())
    assert not found, f"let tests/support do that, or assert by a public call, in place of {sorted(found)}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_contracts_import_only_public_names(path):
    found = inner_names(path.read_text())
    assert not found, f"take the scene from tests/support, or assert by a public call, in place of {sorted(found)}"
