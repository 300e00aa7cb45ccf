"""A fork by Ray Client, whose files go from the client's machine to the node of its log."""

from types import SimpleNamespace

import pytest

from ray_messaging import EventLog
from ray_messaging.cluster import fork
from ray_messaging.errors import AlreadyExists
from ray_messaging.eventlog import forking


@pytest.fixture
def node(monkeypatch, tmp_path):
    """The folder of a node on which another log lies, and a parent of which there are no files."""
    monkeypatch.setattr(fork, "on_ray_client", lambda: True)
    monkeypatch.setattr(fork, "get", lambda found: found)
    monkeypatch.setattr(fork, "put", lambda data: data)
    there = tmp_path / "node"
    there.mkdir()
    (there / "run.json").write_text("of another run")

    def bring(folder):
        if not fork._place(str(there), [("run.json", b"of the fork")]):
            raise AlreadyExists(folder, kind="log", value=folder, owner=None)

    monkeypatch.setattr(fork, "_bring", bring)
    monkeypatch.setattr(fork, "_check_rules", lambda *_: None)
    monkeypatch.setattr(forking, "record_of", lambda _: SimpleNamespace(steps={}, experiment="town"))
    monkeypatch.setattr(forking, "check_rows", lambda _: None)
    monkeypatch.setattr(forking, "checkpoint_before", lambda *_: 3)
    monkeypatch.setattr(forking, "copy_run", lambda _parent, folder, *_: (tmp_path / "twin").mkdir())
    monkeypatch.setattr(forking, "outside_of", lambda *_: [])
    monkeypatch.setattr(EventLog, "open", lambda *_: None)
    return there


def test_a_fork_that_finds_another_log_on_the_node_leaves_no_copy_with_which_it_would_go_on_there(node, tmp_path):
    with pytest.raises(AlreadyExists):
        fork.start_fork(
            tmp_path / "town",
            "twin",
            at_step=None,
            log_dir=tmp_path / "twin",
            rules=None,
            states=None,
            on_existing="resume",
        )
    assert not (tmp_path / "twin").exists()
    assert (node / "run.json").read_text() == "of another run"
