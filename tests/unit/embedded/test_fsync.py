"""The guard's thread that has an append-only file written to the disk."""

import os

import pytest
from support.embedded_server import wait_until

from ray_messaging.embedded import fsync
from ray_messaging.embedded.fsync import Fsync


@pytest.fixture
def written(monkeypatch):
    """Give the sizes of the files that the disk has written, one for each fsync; there is one all 10 ms."""
    sizes = []
    monkeypatch.setattr(fsync, "FSYNC_S", 0.01)
    monkeypatch.setattr(os, "fdatasync", lambda file: sizes.append(os.fstat(file.fileno()).st_size))
    return sizes


def test_only_what_has_changed_is_written(written, tmp_path):
    path = tmp_path / "appendonly.aof.1.incr.aof"
    path.write_bytes(b"x")
    (tmp_path / "appendonly.aof.1.base.rdb").write_bytes(b"a whole snapshot")
    thread = Fsync(tmp_path, lambda: pytest.fail("nothing has failed"))
    wait_until(lambda: written == [1])
    with path.open("ab") as file:
        file.write(b"yz")
    wait_until(lambda: written == [1, 3])
    thread.close()
