"""A study in tasks of Ray: the files of a study in one process, when a worker dies, too."""

import os
import signal

import pytest
from support.studies import work_here

from ray_messaging import Mean, batch_run


@pytest.mark.long
def test_a_study_on_ray_has_the_files_of_one_in_this_process(ray_cluster, tmp_path, monkeypatch):
    mine, marker = os.getpid(), tmp_path / "died"

    def person(me, inbox, *, chance):
        if os.getpid() != mine and chance == 0.7:
            try:
                marker.touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        me.state["heard"] = me.state.get("heard", 0) + len(inbox)
        if me.rng.random() < chance:
            me.send((me.id + 1) % 4, {})

    def sweep(folder):
        return batch_run(
            person, {"chance": [0.2, 0.7]}, agents=4, until=3, replicates=3, outcomes=Mean("heard"), progress=False,
            folder=folder,
        )  # fmt: skip

    sweep(tmp_path / "ray")
    assert marker.exists()
    work_here(monkeypatch)
    sweep(tmp_path / "here")
    for name in ("runs.parquet", "series.parquet"):
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()
