"""The guard's thread that has an append-only file written to the disk."""

import importlib
import os
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.patience import wait_for

from ray_messaging import embedded


@pytest.fixture
def guard_watch(monkeypatch):
    """Import the module as the guard does, which is a script; there is an fsync all 10 ms."""
    monkeypatch.syspath_prepend(Path(embedded.__file__).parent)
    module = importlib.import_module("guard_watch")
    monkeypatch.setattr(module, "FSYNC_S", 0.01)
    return module


def test_only_what_has_changed_is_written(monkeypatch, guard_watch, tmp_path):
    written = []
    monkeypatch.setattr(os, "fdatasync", lambda file: written.append(os.fstat(file.fileno()).st_size))
    path = tmp_path / "appendonly.aof.1.incr.aof"
    path.write_bytes(b"x")
    (tmp_path / "appendonly.aof.1.base.rdb").write_bytes(b"a whole snapshot")
    thread = guard_watch.Fsync(tmp_path, lambda: pytest.fail("nothing has failed"))
    wait_for(lambda: written == [1])
    with path.open("ab") as file:
        file.write(b"yz")
    wait_for(lambda: written == [1, 3])
    thread.close()


def test_a_failed_fsync_is_handed_over_until_it_is_taken(monkeypatch, guard_watch, tmp_path):
    (tmp_path / "appendonly.aof.1.incr.aof").write_bytes(b"x")
    hand_over = Mock(side_effect=[False, OSError("no more files"), True])
    monkeypatch.setattr(os, "fdatasync", Mock(side_effect=OSError(5, "Input/output error")))
    thread = guard_watch.Fsync(tmp_path, hand_over)
    wait_for(lambda: hand_over.call_count == 3)
    thread.close()
    assert hand_over.call_count == 3
