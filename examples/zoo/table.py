"""The zoo's models, and the table of what came out: a row for each claim, and the page of the documentation."""

from importlib import import_module

MODELS = (
    "sir", "granovetter", "watts", "voter", "deffuant", "hegselmann_krause", "axelrod", "schelling", "bass", "money",
    "el_farol", "minority", "kuramoto", "life", "nowak_may",
)  # fmt: skip
HEADS = ("model", "statistic", "published", "tolerance", "here", "replicates", "comes out")

_PAGE = """# A zoo of models

These models of the literature are written as messages between agents. The table compares their results with the values
that the authors published or proved. Each model is a short program for
[`ray_messaging.run`](steps.md#without-a-cluster). In a clone `python -m examples.zoo --check` runs all of them, and
fails if a value does not come out. With `--page docs/zoo.md` it also writes this page.

{table}

*here* is the mean of the replicates. *tolerance* is three standard errors of this mean, plus what the source itself
leaves open. This is no blind test: quick runs of the models had been seen before the tolerance was fixed.

{declared}## Sources

{sources}

## Tolerances

{tolerances}
"""


def load(name):
    """Return the module of a model."""
    return import_module(f"examples.zoo.{name}")


def row(name, outcome):
    """Return a claim and what came out as texts, under HEADS."""
    claim = outcome.claim
    verdict = "yes" if outcome.comes_out else "no, as declared" if claim.declared else "no"
    values = f"{claim.value:.4g}", f"{outcome.tolerance:.2g}", f"{outcome.mean:.4g}"
    return load(name).NAME, claim.statistic, *values, f"{len(outcome.values):,}", verdict


def page(outcomes):
    """Return the page of the documentation, of {model: what came out of each of its claims}."""
    rows = [(name, row(name, each)) for name, found in outcomes.items() for each in found]
    claims = [(load(name).NAME, each.claim) for name, found in outcomes.items() for each in found]
    declared = [f"- {model}, {claim.statistic}: {claim.declared}" for model, claim in claims if claim.declared]
    head = [f"| {' | '.join(HEADS)} |", f"|{' --- |' * len(HEADS)}"]
    return _PAGE.format(
        table="\n".join(
            [*head, *(f"| [{line[0]}](../examples/zoo/{name}.py) | {' | '.join(line[1:])} |" for name, line in rows)]
        ),
        declared="".join(["## What does not come out\n\n", "\n".join(declared), "\n\n"]) if declared else "",
        sources="\n".join(f"- {load(name).NAME}: {load(name).SOURCE}" for name in outcomes),
        tolerances="\n".join(f"- {model}, {claim.statistic}: {claim.why}" for model, claim in claims),
    )
