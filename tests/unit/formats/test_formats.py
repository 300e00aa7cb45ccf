"""Files of format 1, which all later versions 1.x read: frames, and the folder of a run. write.py made them."""

import base64
import json
import shutil
from pathlib import Path

import pytest
from unit.wire.test_frames import said

from ray_messaging import EventLog
from ray_messaging.eventlog import folder_records
from ray_messaging.eventlog.checkpoint_files import read_checkpoint
from ray_messaging.eventlog.folder import Folder
from ray_messaging.transports import experiment_store
from ray_messaging.wire import frames
from ray_messaging.wire.frames import decode, encode

FILES = Path(__file__).parent / "format-1"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a copy of the run's folder."""
    return shutil.copytree(FILES / "run", tmp_path_factory.mktemp("formats") / "run")


@pytest.fixture(scope="module")
def log(folder):
    return EventLog.open(folder)


def test_frames_say_what_they_said_and_are_written_as_they_were():
    for each in json.loads((FILES / "frames.json").read_text()):
        frame = base64.b85decode(each["frame"])
        batch = decode(frame)
        assert repr(said(batch)) == each["says"]
        assert encode(batch) == frame


def test_messages_of_a_run(log):
    events = log.query().to_pandas()
    assert events.groupby("fate").size().to_dict() == {"blocked": 3, "delivered": 30, "undeliverable": 3}
    blocked = events[events["fate"] == "blocked"]
    assert blocked[["from_id", "to_id"]].to_numpy().tolist() == [["3", "4"]] * 3
    assert events[events["audience"] == "*"]["payload"].tolist() == ['{"bell":0}', '{"bell":1}', '{"bell":2}']
    assert len(log.query(expand=True)) == 60


def test_digests_calls_and_series_of_a_run(log):
    digests = json.loads((FILES / "digests.json").read_text())
    assert {str(step): log.digest(step).hex() for step in range(3)} == digests
    calls = log.calls().to_pandas()
    assert set(calls["function"]) == {"guess"}
    assert len(calls) == 30
    series = log.series().to_pandas()
    assert series[series["step"] == 2]["heard"].tolist() == [2, 4, 4, 4, 2, 4, 4, 4, 4, 4]


def test_the_numbers_of_the_formats_stay():
    """A new number breaks the promise of docs/operations.md: it needs a version 2, or code that reads both formats."""
    assert (frames.VERSION, folder_records.FORMAT, experiment_store.FORMAT) == (4, 1, 5)


def test_record_checkpoints_and_causes_of_a_run(log, folder):
    assert (log.run["format"], log.run["groups"], log.run["steps"]["seed"]) == (1, {"group0": 10}, 7)
    for step in (1, 2):
        assert len([*read_checkpoint(Folder(str(folder)), step)]) > 3
    sent = log.query(step=2, from_id=5, fate="delivered").to_pandas()
    tree = log.why(sent["message_id"].iloc[0])
    assert (tree.message.from_id, tree.causes[0].message.step) == (5, 1)
    assert log.diff(log) is None
