"""Rule changes in a log's folder."""

import pytest

from ray_messaging.errors import LogError
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.records import RuleChange, read_rule_changes, write_rule_changes


def test_rule_changes_come_back_as_written(tmp_path):
    folder = Folder(tmp_path)
    assert read_rule_changes(folder) == []
    changes = [RuleChange(1.5, "insert", {"name": "max_length"}, 12, exact=True), RuleChange(2.5, "remove", {})]
    write_rule_changes(folder, changes)
    assert read_rule_changes(folder) == changes


def test_a_damaged_file_is_named(tmp_path):
    folder = Folder(tmp_path)
    folder.write_small("_rule_changes.json", b"[{]")
    with pytest.raises(LogError, match=r"_rule_changes\.json are damaged"):
        read_rule_changes(folder)
