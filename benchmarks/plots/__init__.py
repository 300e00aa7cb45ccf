"""Draw a run's figures as PNGs, 1,200 pixels wide, legible in a README and to the colour-blind."""

from pathlib import Path

from benchmarks.plots import bars, curves
from benchmarks.runs.results import Run

STYLE = {"font.size": 12, "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True}


def draw(run: Run, folder: Path) -> list[Path]:
    """Draw the plots for which the run has figures; return the files. Raises ImportError without matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    with mpl.rc_context(STYLE):
        return [*bars.draw(run, folder), *curves.draw(run, folder)]
