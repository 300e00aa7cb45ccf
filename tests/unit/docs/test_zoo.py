"""The zoo: its page has all models and sources, its command tells what does not come out, and the values come out."""

import re
from pathlib import Path

import pytest

from examples.zoo import __main__ as command
from examples.zoo import claims
from examples.zoo.claims import Claim, Outcome, check
from examples.zoo.table import MODELS, load, page, row

ROOT = Path(__file__).resolve().parents[3]
ROW = re.compile(r"^\| \[([^\]]+)\]\(\.\./examples/zoo/(\w+)\.py\) \| (.+) \|$", re.MULTILINE)


def as_on_the_page():
    """Return {model: outcomes} with the means and replicates that docs/zoo.md has."""
    found = {name: [] for name in MODELS}
    for _, name, rest in ROW.findall((ROOT / "docs/zoo.md").read_text()):
        statistic, _, _, mean, replicates, _ = rest.split(" | ")
        claim = next(each for each in load(name).CLAIMS if each.statistic == statistic)
        found[name].append(Outcome(claim, (float(mean),) * int(replicates.replace(",", ""))))
    return found


def claim_of(values, **facts):
    return Claim("a number", lambda replicates: values[:replicates], value=5, why="by hand", **facts)


@pytest.fixture
def zoo(monkeypatch):
    """Put other claims in the place of a model's; return the function that does so."""
    return lambda name, *found: monkeypatch.setattr(load(name), "CLAIMS", [*found])


def test_the_page_is_made_of_the_models_their_sources_and_claims():
    found = as_on_the_page()
    assert [len(found[name]) for name in MODELS] == [len(load(name).CLAIMS) for name in MODELS]
    assert page(found) == (ROOT / "docs/zoo.md").read_text()


def test_each_file_of_the_folder_is_a_model_or_one_of_the_zoos_own():
    files = {path.stem for path in (ROOT / "examples/zoo").glob("*.py")}
    assert files == {*MODELS, "__init__", "__main__", "claims", "table"}
    assert len(MODELS) >= 12


@pytest.mark.parametrize("name", MODELS)
def test_a_model_names_its_source_and_its_tolerances(name):
    model = load(name)
    assert model.__doc__
    assert sum(bool(line.strip()) for line in (ROOT / f"examples/zoo/{name}.py").read_text().splitlines()) <= 60
    assert re.search(r"\b(19|20)\d\d\b", model.SOURCE)
    assert all(claim.why and claim.replicates >= claim.small for claim in model.CLAIMS)
    assert any(claim.small for claim in model.CLAIMS)
    statistics = [claim.statistic for claim in model.CLAIMS]
    assert len({*statistics}) == len(statistics)


@pytest.mark.parametrize(
    ("values", "facts", "comes_out"),
    [
        ([5.0], {}, True),
        ([5.1], {}, False),
        ([float("nan")], {"apart": 9.0}, False),
        ([5.0, 5.4], {"apart": 0.2, "replicates": 2}, True),
        ([5.0, 5.5], {"apart": 0.2, "replicates": 2}, False),
        ([5.5] * 9, {"spread": 0.5, "replicates": 9}, True),
        ([5.6] * 9, {"spread": 0.5, "replicates": 9}, False),
    ],
)
def test_a_value_comes_out_within_three_standard_errors_and_what_the_source_leaves_open(values, facts, comes_out):
    assert check(claim_of(values, **facts)).comes_out == comes_out


def test_few_replicates_have_a_wider_tolerance():
    claim = claim_of([5.9] * 9, spread=0.5, replicates=9, small=1)
    assert [check(claim).comes_out, check(claim, small=True).comes_out] == [False, True]


def test_a_model_that_measures_too_few_replicates_is_an_error():
    with pytest.raises(ValueError, match="'a number' measured 1 replicates, not 2"):
        check(claim_of([5.0], replicates=2))


def test_the_command_fails_where_a_value_does_not_come_out_and_is_not_declared_so(zoo, capsys):
    zoo("life", claim_of([5.0]))
    assert command.main(["--check", "--workers", "1", "life"]) == 0
    zoo("life", claim_of([5.0]), claim_of([7.0], declared="the source counts otherwise"))
    assert command.main(["--check", "--workers", "1", "life"]) == 0
    zoo("life", claim_of([5.0]), claim_of([7.0]))
    assert command.main(["--check", "--workers", "1", "life"]) == 1
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    verdicts = [line[-1] for line in lines]
    assert verdicts == ["comes out", "yes", "comes out", "yes", "no, as declared", "comes out", "yes", "no"]
    assert lines[-1] == ["Life", "a number", "5", "0", "7", "1", "no"]


def test_the_page_says_what_does_not_come_out(zoo):
    claim = claim_of([7.0], declared="the source counts otherwise")
    zoo("life", claim)
    made = page({"life": [check(claim)]})
    assert "## What does not come out\n\n- Life, a number: the source counts otherwise\n" in made
    assert "| 7 | 1 | no, as declared |" in made


def test_the_command_without_a_check_lists_models_and_sources(capsys):
    assert command.main([]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(MODELS)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [(["--check", "sirr"], "there is no model sirr"), (["--page", "zoo.md"], "--page has the whole zoo")],
)
def test_the_command_refuses_what_it_does_not_know(arguments, error, capsys):
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert error in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_the_values_come_out(name):
    for outcome in claims.check_model(name, small=True):
        assert outcome.comes_out or outcome.claim.declared, row(name, outcome)
