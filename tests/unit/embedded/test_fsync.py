"""The guard's thread that has an append-only file written to the disk."""

import importlib
import os
from pathlib import Path

import pytest
from support.embedded_server import wait_until

from ray_messaging import embedded


def test_only_what_has_changed_is_written(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(Path(embedded.__file__).parent)  # as for the guard, a script
    guard_watch, written = importlib.import_module("guard_watch"), []
    monkeypatch.setattr(guard_watch, "FSYNC_S", 0.01)
    monkeypatch.setattr(os, "fdatasync", lambda file: written.append(os.fstat(file.fileno()).st_size))
    path = tmp_path / "appendonly.aof.1.incr.aof"
    path.write_bytes(b"x")
    (tmp_path / "appendonly.aof.1.base.rdb").write_bytes(b"a whole snapshot")
    thread = guard_watch.Fsync(tmp_path, lambda: pytest.fail("nothing has failed"))
    wait_until(lambda: written == [1])
    with path.open("ab") as file:
        file.write(b"yz")
    wait_until(lambda: written == [1, 3])
    thread.close()
