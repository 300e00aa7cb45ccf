"""An embedded server, and an empty folder for temporary files: what a server leaves behind is seen there."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.embedded_server import HOST

from ray_messaging.embedded.redis_server import EmbeddedServer


@pytest.fixture(autouse=True)
def temporary_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "tmp"
    root.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(root))
    monkeypatch.setenv("TMPDIR", str(root))
    return root


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    with EmbeddedServer(HOST) as server:
        yield server
