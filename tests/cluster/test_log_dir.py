"""The place of an experiment's event log, and the warnings about it."""

import logging
import uuid
from pathlib import Path

import pytest
import ray

from ray_messaging import Messaging
from ray_messaging.cluster.spec import absolute


@pytest.fixture
def session(ray_cluster):
    """Return Ray's session folder, where jobs and trials run."""
    context = ray.get_runtime_context()
    return Path(context.get_temp_dir()) / context.get_session_name()


@pytest.mark.long
def test_a_relative_log_dir_in_rays_session_folder_causes_a_warning(session, monkeypatch, caplog, exp_id):
    trial = session / "artifacts" / uuid.uuid4().hex / "working_dirs" / "trial"
    trial.mkdir(parents=True)
    monkeypatch.chdir(trial)
    with Messaging.start(exp_id, log_dir="town-log") as messaging:
        assert messaging.log_dir == str(trial / "town-log")
        assert repr(messaging) == f"Messaging({messaging.exp_id!r}, log_dir={messaging.log_dir!r})"
        assert Messaging.connect(messaging.exp_id).log_dir == messaging.log_dir
    (record,) = [each for each in caplog.records if each.name.startswith("ray_messaging")]  # Ray may log, too
    assert "log_dir='town-log' is relative" in record.message
    assert str(trial / "town-log") in record.message
    assert "absolute path" in record.message
    assert list((trial / "town-log").iterdir())


def test_only_a_relative_folder_in_rays_session_is_logged_with_a_warning(session, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.INFO, "ray_messaging"):
        assert absolute("town-log") == str(tmp_path / "town-log")
        assert absolute(session / "town-log") == str(session / "town-log")  # as its user wrote it
        assert absolute("s3://bucket/town") == "s3://bucket/town"
        assert absolute(None) is None
        assert [record.levelname for record in caplog.records] == ["INFO", "INFO"]
        assert str(tmp_path / "town-log") in caplog.text
        monkeypatch.chdir(session)
        assert absolute("town-log") == str(session / "town-log")
    assert caplog.records[-1].levelname == "WARNING"
