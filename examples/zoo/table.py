"""The zoo's models, and the table of what came out: a row for each claim, and the page of the documentation."""

from importlib import import_module

MODELS = (
    "sir", "granovetter", "watts", "voter", "deffuant", "hegselmann_krause", "axelrod", "schelling", "bass", "money",
    "el_farol", "minority", "kuramoto", "life", "nowak_may",
)  # fmt: skip
HEADS = ("model", "statistic", "published", "tolerance", "here", "replicates", "comes out")

_PAGE = """# A zoo of models

The **zoo** is a collection of known models, such as Schelling's model of segregation, in which agents influence each
other by messages. The table compares results of each model with the values that its authors published or proved. Each
model is a short program for [`ray_messaging.run`](steps.md#without-a-cluster).

In a clone of the repository the command `python -m examples.zoo --check` runs all models, and prints the table. The
exit code is 1 if a result is not within its tolerance, unless the model's program says in advance that this result
will be outside its tolerance. With `--page docs/zoo.md` the command also writes this page.

- *published* is the value that the source gives, or that follows from its theory.
- *here* is our result: the mean of all replicates, which are runs of the same model.
- *replicates* is how many times we ran the model, each time with other random numbers.
- *tolerance* is how far our result may be from the published value: three standard errors of our result, plus the
  uncertainty of the published value.
- *comes out* says whether our result is within the tolerance. *no, as declared* means that our result
  is not within the tolerance, and that the section [What does not come out](#what-does-not-come-out) says why.

{table}

We had seen quick runs of the models before we fixed the tolerances, so the table is no blind test.

{declared}## Sources

{sources}

## Tolerances

This table says for each result why its tolerance is as wide as it is. A **replicate** is one run of a model.

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
        tolerances="\n".join(
            ["| model | statistic | reason for the tolerance |", "|---|---|---|"]
            + [f"| {model} | {claim.statistic} | {claim.why} |" for model, claim in claims]
        ),
    )
