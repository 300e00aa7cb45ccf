"""The result of a run, as tables."""

import pickle
from collections import Counter
from copy import copy

import numpy as np
import pandas as pd
import pytest

from ray_messaging.cluster.run.result import Result, gathered
from ray_messaging.cluster.run.run_actor import GroupResult

LARGE = 1143926187236421734  # no float holds it
PARTS = [GroupResult({1: {}}, Counter(), 2, {}, {}, Counter(), spent=False, sealed=1)]
DIGESTS = {0: "aa", 1: "bb"}


def test_a_state_may_have_any_key():
    frame = Result({3: {"agent": "x", "agent id": "y"}}, 1).to_pandas()
    assert (frame.index.name, frame.index.tolist(), frame.loc[3].tolist()) == ("agent", [3], ["x", "y"])
    assert "<th>agent</th><th>5</th>" in Result({3: {5: "x"}}, 1)._repr_html_()
    frame = Result({3: {"agent": "x", "k": 1}, "ann": {"k": 2}}, 1).to_pandas()
    assert (frame.index.name, frame.index.tolist(), frame.columns.tolist()) == ("agent", [3, "ann"], ["agent", "k"])
    assert frame.loc[3, "agent"] == "x"
    assert "<th>agent id</th><th>agent</th><th>k</th>" in Result({3: {"agent": "x", "k": 1}}, 1)._repr_html_()


def test_whole_numbers_stay_exact_where_some_states_lack_them():
    states = {1: {"leader": LARGE, "n": 1, "x": LARGE}, 2: {"leader": None, "n": 2, "x": 0.5}}
    states[1]["own"] = np.int64(LARGE)
    frame = Result(states, 1).to_pandas()
    assert frame.pop("own").tolist() == [LARGE, pd.NA]
    assert frame["leader"].tolist() == [LARGE, pd.NA]
    assert frame["x"].tolist() == [LARGE, 0.5]
    assert frame.dtypes.astype(str).tolist() == ["Int64", "int64", "object"]


def test_states_of_groups_have_a_row_for_each_agent():
    ids = {"a": np.array([0, 2, 4]), "b": np.array([1, 3])}
    states = {
        "a": {"mood": np.array([0.0, 0.2, 0.4]), "leader": np.array([LARGE, 2, 4]), "total": np.array(3)},
        "b": {"mood": np.array([0.1, 0.3]), "at": np.array([[1, 2], [3, 4]], np.int8)},
    }
    frame = Result(states, 1, ids=ids).to_pandas()
    assert (frame.index.name, frame.index.tolist()) == ("agent", [0, 1, 2, 3, 4])
    assert frame["mood"].tolist() == [0.0, 0.1, 0.2, 0.3, 0.4]
    assert frame["leader"].tolist() == [LARGE, pd.NA, 2, pd.NA, 4]
    assert frame["at"].tolist() == [None, [1, 2], None, [3, 4], None]
    assert frame.columns.tolist() == ["mood", "leader", "at"]


def test_each_agent_of_many_groups_has_its_own_row():
    names = [f"group{number}" for number in range(12)]  # "group10" comes before "group2" in the order of texts
    ids = {name: np.array([number, number + 12]) for number, name in enumerate(names)}
    states = {name: {"n": ids[name] * 10} for name in sorted(names)}
    assert Result(states, 1, ids=ids).to_pandas()["n"].to_dict() == {agent: 10 * agent for agent in range(24)}


def test_groups_of_named_agents_and_groups_without_any():
    ids = {"a": np.array([7, "ann"], object), "b": np.array([3]), "c": np.zeros(0, np.int64)}
    states = {"a": {"n": np.array([1, 2], np.int8)}, "b": {"n": np.array([3], np.int8)}, "c": {"n": np.zeros(0)}}
    frame = Result(states, 1, ids=ids).to_pandas()
    assert frame["n"].to_dict() == {3: 3, 7: 1, "ann": 2}
    assert frame["n"].dtype == np.int8


def test_agents_that_nobody_hosts_are_named():
    result = Result({1: {}}, 2, Counter(undeliverable=1_001), undeliverable={"agent 99": 1_000, "agent 'ann'": 1})
    assert repr(result).endswith("; undeliverable, as nobody listens there: agent 99 (1,000), agent 'ann' (1)")


def test_dates_that_a_group_lacks_stay_dates():
    states = {"west": {"born": np.array(["2020-01-01"], "M8[ns]")}, "east": {}}
    frame = Result(states, 1, ids={"west": np.array([0]), "east": np.array([1])}).to_pandas()
    assert frame["born"].tolist() == [pd.Timestamp("2020-01-01"), pd.NaT]


def with_later_digests():
    asked = []
    return gathered(PARTS, 2, {}, lambda: asked.append(1) or DIGESTS, None), asked


@pytest.mark.parametrize("read", [lambda result: result, lambda result: pickle.loads(pickle.dumps(result)), copy])
def test_digests_that_are_computed_later(read):
    result, asked = with_later_digests()
    assert repr(result).startswith("Result(1 states after 2 steps")
    assert not asked
    assert read(result).digests == DIGESTS
    assert result == with_later_digests()[0] == gathered(PARTS, 2, {}, DIGESTS, None)
    assert asked == [1]


def test_a_result_has_no_other_attributes():
    with pytest.raises(AttributeError, match="no attribute 'digest'"):
        with_later_digests()[0].digest  # noqa: B018
