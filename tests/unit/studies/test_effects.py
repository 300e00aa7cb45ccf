"""Effects: differences to a base with their intervals, against plain computations."""

import itertools
import math
import re
import statistics

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats
from support.studies import work_here, written_study

from ray_messaging import Mean, Study, batch_run
from ray_messaging.errors import ConfigError, LogError
from ray_messaging.studies.bootstrap import effect_size, mean_interval, student_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 30, 999])
@pytest.mark.parametrize("p", [0.5, 0.6, 0.9, 0.975, 0.9995])
def test_students_quantile_is_scipys(p, freedom):
    assert student_quantile(p, freedom) == pytest.approx(stats.t.ppf(p, freedom), rel=1e-7, abs=1e-12)


def test_an_interval_is_that_of_all_resamples():
    """Of six values all 46,656 resamples can be listed, and each is as likely as any other."""
    values = [0.3, 1.1, 2.0, 2.2, 3.7, 9.5]
    means = sorted(map(statistics.fmean, itertools.product(values, repeat=6)))
    tail = stats.norm.cdf(-math.sqrt(6 / 5) * stats.t.ppf(0.95, 5))
    low, high = means[round(tail * len(means))], means[round((1 - tail) * len(means))]
    found = mean_interval(values, level=0.9, resamples=200_000)
    assert found.mean == pytest.approx(statistics.fmean(values))
    assert (found.low, found.high) == (pytest.approx(low, abs=0.05), pytest.approx(high, abs=0.05))
    assert found == mean_interval(values, level=0.9, resamples=200_000)


def test_values_without_an_interval():
    assert mean_interval([2.0], level=0.95)[0] == 2
    assert all(map(math.isnan, mean_interval([2.0], level=0.95)[1:]))
    assert math.isnan(mean_interval([], level=0.95).mean)
    assert mean_interval([2.0, 2.0, 2.0], level=0.95) == (2, 2, 2)
    assert math.isnan(effect_size([1, 1], [2, 2]))


def sick(run):
    if run.row["town"] == "b" and run.replicate == 3:
        raise RuntimeError("no beds")
    chance = np.random.default_rng([run.seed, len(run.row["rule"])])
    sick = 10 * run.replicate + (3 if run.row["rule"] == "mask" else 0) + float(chance.normal())
    return {"sick": sick, "over": bool(sick > 30), "name": "x"}


def test_effects_are_those_of_a_plain_computation(tmp_path):
    study = written_study(tmp_path / "s", {"rule": ["none", "mask"], "town": ["a", "b"]}, 6, sick)
    table = study.to_pandas()
    found = study.effects(base={"rule": "none"}, level=0.9)
    assert [*zip(found["rule"], found["town"], found["outcome"], strict=True)] == [
        ("mask", town, outcome) for town in "ab" for outcome in ("over", "sick")
    ]
    for _, effect in found.iterrows():
        runs = table[(table["town"] == effect["town"])].set_index("replicate")
        ours = runs[runs["rule"] == "mask"][effect["outcome"]].dropna().astype(float)
        theirs = runs[runs["rule"] == "none"][effect["outcome"]].dropna().astype(float)
        differences = ours - theirs
        assert effect["difference"] == pytest.approx(differences.mean())
        assert effect["base"] == pytest.approx(theirs.mean())
        assert effect["mean"] == pytest.approx(ours.mean())
        pooled = math.sqrt((ours.var() + theirs.var()) / 2)
        assert effect["size"] == pytest.approx((ours.mean() - theirs.mean()) / pooled)
        assert (effect["low"], effect["high"]) == mean_interval([*differences], level=0.9)[1:]
        assert (effect["pairs"], effect["missing"]) == ((6, 0) if effect["town"] == "a" else (5, 1))
        assert effect["equal"] == 0


def test_pairs_without_any_difference_are_counted(tmp_path):
    study = written_study(
        tmp_path / "s", {"n": [1, 2]}, 4, lambda run: {"sum": run.seed}, digest=lambda run: f"{run.seed // 2}"
    )
    (effect,) = study.effects({"n": 1}).to_dict("records")
    assert (effect["equal"], effect["difference"], effect["low"], effect["high"]) == (4, 0, 0, 0)


def test_an_effect_that_is_none_is_inside_of_its_interval_in_95_of_100_studies(tmp_path):
    def outcomes(run):
        chance = np.random.default_rng([run.seed, run.row["rule"] == "mask"])
        return {f"o{number}": float(value) for number, value in enumerate(chance.normal(size=100))}

    inside = 0
    for seed in range(4):
        study = written_study(tmp_path / f"{seed}", {"rule": ["none", "mask"]}, 12, outcomes, seed=seed)
        effects = study.effects({"rule": "none"}, resamples=2_000)
        inside += ((effects["low"] <= 0) & (effects["high"] >= 0)).sum()
    assert 0.93 < inside / 400 < 0.97


def test_what_cannot_be_compared_is_told(tmp_path):
    rows = [{"rule": "none", "n": 1}, {"rule": "mask", "n": 2}]
    study = written_study(tmp_path / "s", rows, 2, lambda run: {"a": "x"})
    for call, said in (
        (lambda: study.effects({}), "base={} must be a dict"),
        (
            lambda: study.effects({"rool": 1}),
            "base= has 'rool', which is not a parameter of the study: write one of 'rule', 'n'",
        ),
        (lambda: study.effects({"rule": "cap"}), "no run has rule='cap': write one of the values 'none', 'mask'"),
        (lambda: study.effects({"rule": "none"}), "but the study has no such runs: choose a base="),
        (lambda: study.effects({"rule": "none", "n": 1}, outcomes="b"), "no run has the outcome 'b'"),
        (lambda: study.effects({"rule": "none", "n": 1}, outcomes="a"), "'a' is a str"),
        (lambda: study.effects({"rule": "none", "n": 1}, level=95), "level=95"),
        (lambda: study.effects({"rule": "none", "n": 1}, resamples=0), "resamples=0"),
    ):
        with pytest.raises(ConfigError, match=re.escape(said)):
            call()


def chatter(me, inbox, *, limit, loud):
    for number in range(2 if limit == "none" or me.step < 2 else 1):
        me.send((me.id + 1) % 3, {"n": number})
    me.state["heard"] = len(inbox) + loud


def test_effects_name_the_first_message_in_which_a_pair_differs(tmp_path, monkeypatch):
    """Two rows differ only in their states."""
    work_here(monkeypatch)
    asked = {
        "agents": 3, "until": 4, "replicates": 2, "outcomes": Mean("heard"), "folder": tmp_path / "s",
        "progress": False, "logs": True,
    }  # fmt: skip
    study = batch_run(chatter, {"limit": ["none", "one"], "loud": [0, 1]}, **asked)
    found = study.effects(base={"limit": "none", "loud": 0})
    assert found["first"].isna().tolist() == [True, False, False]
    assert found["first"].tolist()[1:] == [
        'step 2, replicate 0: agent 2 sent nothing, and in the base {"n":1} to agent 0 (delivered)',
        'step 2, replicate 0: agent 2 sent nothing, and in the base {"n":1} to agent 0 (delivered)',
    ]
    logs = [study.log({"limit": limit, "loud": 0}, 1) for limit in ("none", "one")]
    assert [log.balance().sends for log in logs] == [24, 18]
    with pytest.raises(ConfigError, match=r"no run with {'limit': 'two', 'loud': 0} and replicate 1"):
        study.log({"limit": "two", "loud": 0}, 1)
    batch_run(chatter, {"limit": ["none"], "loud": [0, 1]}, **asked | {"on_existing": "reset"})
    assert len([*(tmp_path / "s" / "logs").iterdir()]) == 4


def saying(me, inbox, *, word):
    me.send(1 - me.id, {"word": word if me.step == 3 else "x"})


def test_a_difference_long_before_the_end_is_found(tmp_path, monkeypatch):
    """The runs are equal in their last 64 steps and in their states, and so are their digests."""
    work_here(monkeypatch)
    study = batch_run(
        saying, {"word": ["a", "b"]}, agents=2, until=70, outcomes={"steps": lambda result: result.steps},
        folder=tmp_path / "s", progress=False, logs=True,
    )  # fmt: skip
    found = study.effects(base={"word": "a"})
    assert found["equal"].tolist() == [1]
    assert found["first"].tolist() == [
        'step 3, replicate 0: agent 1 sent {"word":"b"} to agent 0 (delivered), and in the base {"word":"a"} to agent '
        "0 (delivered)"
    ]


def test_a_study_without_logs_says_how_to_keep_them(tmp_path, monkeypatch):
    work_here(monkeypatch)
    asked = {"agents": 3, "until": 4, "outcomes": Mean("heard"), "progress": False, "folder": tmp_path / "plain"}
    study = batch_run(chatter, {"limit": ["none", "one"], "loud": [0]}, **asked)
    assert "first" not in study.effects(base={"limit": "none"})
    with pytest.raises(ConfigError, match=r"has no logs: make a study with batch_run.*logs=True"):
        study.log({"limit": "none", "loud": 0})
    with pytest.raises(ConfigError, match="logs=True keeps whole runs, but with vary_from= several runs share steps"):
        batch_run(
            chatter, {"limit": ["none", "one"], "loud": [0]}, vary_from=2, before={"limit": "one"}, logs=True, **asked
        )
    with pytest.raises(ConfigError, match=r"another study: its option 'logs' is None, and here True"):
        batch_run(chatter, {"limit": ["none", "one"], "loud": [0]}, logs=True, **asked)


def test_the_log_of_a_row_is_not_that_of_a_row_that_is_equal_in_python(tmp_path, monkeypatch):
    work_here(monkeypatch)
    study = batch_run(
        saying, {"word": [1, True]}, agents=2, until=4, outcomes={"steps": lambda result: result.steps},
        folder=tmp_path / "s", progress=False, logs=True,
    )  # fmt: skip
    for word in (1, True, np.int64(1)):
        said = study.log({"word": word}).query(step=3)["payload"].to_pylist()
        assert said == [f'{{"word":{"true" if word is True else "1"}}}'] * 2
    assert len(study.log({"word": 1.0}).query()) == 8


def test_levels_that_are_equal_in_python_are_not_taken_for_each_other(tmp_path):
    """False is no limit, 0 is a limit of 0: a base of one left out the rows of the other, and a plot pooled both."""
    levels = [False, 0, 1, True, 1.5]
    study = written_study(
        tmp_path / "s",
        {"limit": levels},
        3,
        lambda run: {"sick": 10.0 * [*map(repr, levels)].index(repr(run.row["limit"]))},
    )
    for base in (False, 0, True, np.int64(0)):
        effects = study.effects(base={"limit": base})
        found = {
            repr(limit): difference for limit, difference in zip(effects["limit"], effects["difference"], strict=True)
        }
        at = [*map(repr, levels)].index(repr(int(base) if isinstance(base, np.integer) else base))
        assert found == {repr(limit): 10.0 * (n - at) for n, limit in enumerate(levels) if n != at}
    with pytest.raises(ConfigError, match="'limit' has a bool and a number that are equal"):
        study.plot("limit", "sick")


def test_a_damaged_bit_of_a_study_is_not_another_outcome(tmp_path):
    """The file was read, and the study had another mean."""
    folder = tmp_path / "s"
    written_study(folder, {"rule": ["none", "mask"]}, 6, lambda run: {"sick": 10.0 * run.replicate})
    path = folder / "runs-00000000.parquet"
    data = bytearray(path.read_bytes())
    chunk = pq.read_metadata(path).row_group(0).column(pq.read_schema(path).get_field_index("sick"))
    data[chunk.dictionary_page_offset + chunk.total_compressed_size - 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(LogError, match=r"'runs-00000000.parquet' .* cannot be read"):
        Study(folder).summary()
