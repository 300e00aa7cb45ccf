"""Shared by the trace tests: files to write, errors to read, and the paths of real traces."""

import gzip

import pytest

from ray_messaging.errors import TraceError
from ray_messaging.replay.trace import read_trace


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a file and returns its path."""

    def write(name, content, *, zipped=False):
        content = content.encode() if isinstance(content, str) else content
        path = tmp_path / name
        path.write_bytes(gzip.compress(content) if zipped else content)
        return path

    return write


@pytest.fixture(scope="session")
def blame():
    """Return a function that reads a broken trace and returns the error's line and message."""

    def blame(path, **fields):
        with pytest.raises(TraceError) as caught:
            read_trace(path, **fields)
        line, message = caught.value.line, str(caught.value)
        assert caught.value.file == str(path)
        assert line == 0 or message.startswith(f"{path.name}:{line}: ")
        return line, message

    return blame
