"""Folders in which embedded servers keep their data."""

from threading import Event

import pytest

from ray_messaging.cluster import embedded_servers
from ray_messaging.cluster.embedded_servers import KeptData
from ray_messaging.errors import ConfigError


def keep(*folders):
    for folder in folders:
        (folder / "appendonlydir").mkdir(parents=True)


def kept(given, shards=None, log_dir=None):
    return KeptData.of(given, log_dir=log_dir, shards=shards)


def test_one_server_has_the_folder_itself_and_several_have_one_each(tmp_path):
    one, several = tmp_path / "one", tmp_path / "several"
    shards = tuple(several / f"shard-{shard}-of-3" for shard in range(3))
    for _ in ("empty", "with data"):
        assert kept(one) == (one, (one,), True)
        assert kept(several, 3) == (several, shards, True)
        if not one.exists():
            keep(one, *shards)


def test_data_lie_beside_a_log_that_is_a_folder(tmp_path):
    assert kept(None, 3, log_dir=f"{tmp_path}/log/").folder == tmp_path / "log-server"
    for log_dir in (None, "s3://bucket/log"):
        assert kept(None, 3, log_dir=log_dir) is None
    assert kept(None, "per-node", log_dir=str(tmp_path)) is None


@pytest.mark.parametrize(
    ("there", "shards", "words"),
    [
        (["shard-0-of-3", "shard-1-of-3", "shard-2-of-3"], 2, ["data of 3 shards", "this start is 2", "shards=3"]),
        (["shard-0-of-3", "shard-1-of-3", "shard-2-of-3"], None, ["data of 3 shards", "this start is 1", "shards=3"]),
        (["."], 3, ["data of one server", "no shards="]),
        (["shard-0-of-3", "shard-2-of-3"], 3, ["lacks shard-1-of-3", "restore them"]),
    ],
    ids=str,
)
def test_data_of_other_servers_are_refused(tmp_path, there, shards, words):
    keep(*(tmp_path / name for name in there))
    with pytest.raises(ConfigError) as caught:
        kept(tmp_path, shards)
    for word in (str(tmp_path), *words):
        assert word in str(caught.value)


def test_the_folder_goes_with_those_of_the_servers_unless_it_has_other_files(tmp_path):
    found = kept(tmp_path / "data", 2)
    found.folder.mkdir()
    (found.folder / "notes").touch()
    found.clean()
    assert found.folder.exists()
    (found.folder / "notes").unlink()
    found.clean()
    assert not found.folder.exists()


def test_large_data_that_nobody_asked_for_are_named_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(embedded_servers, "_told", Event())
    monkeypatch.setattr(embedded_servers, "LARGE_BYTES", 2_000_000)
    beside_log = kept(None, log_dir=str(tmp_path / "log"))
    beside_log.tell()  # there is no folder
    beside_log.folder.mkdir()
    (beside_log.folder / "small").write_bytes(bytes(1_999_999))
    beside_log.tell()
    assert capsys.readouterr().err == ""
    (beside_log.folder / "large").write_bytes(bytes(2))
    kept(beside_log.folder).tell()  # the user has named it
    beside_log.tell()
    beside_log.tell()
    assert capsys.readouterr().err == f"{tmp_path}/log-server (2 MB) is needed only to resume this run\n"
