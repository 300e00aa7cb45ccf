"""Colours, numbers and the title that all plots share."""

from pathlib import Path
from typing import Any

from benchmarks.figures import LIMIT, OURS

DPI = 100
WIDTH_IN = 12.0
BLUE, ORANGE, GREY, GREEN, PURPLE, SKY = "#0072B2", "#E69F00", "#8C8C8C", "#009E73", "#CC79A7", "#56B4E9"  # Okabe, Ito
HIGHER, LOWER = "longer is better", "shorter is better"


def colour(who: str) -> str:
    """Return the colour of ours, a limit or a peer."""
    return BLUE if who.startswith(OURS) else ORANGE if who.startswith(LIMIT) else GREY


def short(value: float) -> str:
    """Write a number in the room that a plot has."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def canvas(height_in: float, columns: int = 1) -> tuple[Any, Any]:
    """Make a figure and its row of panels (an array, also of one)."""
    import matplotlib.pyplot as plt

    return plt.subplots(1, columns, figsize=(WIDTH_IN, height_in), dpi=DPI, layout="constrained", squeeze=False)


def save(figure: Any, path: Path, title: str) -> Path:
    """Put the title on it, write it, and let go of it."""
    import matplotlib.pyplot as plt

    figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=14)
    figure.savefig(path)
    plt.close(figure)
    return path
