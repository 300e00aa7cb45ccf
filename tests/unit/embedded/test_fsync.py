"""The guard's thread that has an append-only file written to the disk."""

import importlib
import os
import threading
from pathlib import Path

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
    answers, ended = iter([False, OSError("no more files"), True]), threading.Event()

    def refuse(file):
        raise OSError(5, "Input/output error")

    def hand_over():
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        if answer:
            ended.set()
        return answer

    monkeypatch.setattr(os, "fdatasync", refuse)
    thread = guard_watch.Fsync(tmp_path, hand_over)
    assert ended.wait(10)
    assert next(answers, None) is None
    thread.close()
