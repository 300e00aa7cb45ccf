"""The result of a run, as tables."""

from ray_messaging.cluster.run.result import Result


def test_a_state_may_have_any_key():
    frame = Result({3: {"agent": "x", "agent id": "y"}}, 1).to_pandas()
    assert (frame.index.name, frame.index.tolist(), frame.loc[3].tolist()) == ("agent", [3], ["x", "y"])
    assert "<th>agent</th><th>5</th>" in Result({3: {5: "x"}}, 1)._repr_html_()
    frame = Result({3: {"agent": "x", "k": 1}, "ann": {"k": 2}}, 1).to_pandas()
    assert (frame.index.name, frame.index.tolist(), frame.columns.tolist()) == ("agent", [3, "ann"], ["agent", "k"])
    assert frame.loc[3, "agent"] == "x"
    assert "<th>agent id</th><th>agent</th><th>k</th>" in Result({3: {"agent": "x", "k": 1}}, 1)._repr_html_()
