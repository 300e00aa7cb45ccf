"""docs/mesa.md: both programs run as printed, with the same series."""

import pytest

from tests.support.doc_pages import blocks, compare, run_block

PAGE = "docs/mesa.md"


def programs():
    """Return the blocks with the edges, the program in Mesa, ours, and what ours prints."""
    edges, mesa, ours = (block for block in blocks(PAGE) if block.language == "python")
    (printed,) = (block for block in blocks(PAGE) if block.language == "text")
    return edges, mesa, ours, printed


def test_our_program_prints_what_the_page_says(capsys):
    edges, _, ours, printed = programs()
    names = {}
    for block in (edges, ours):
        run_block(PAGE, block, names)
    compare(PAGE, printed.line, printed.text, capsys.readouterr().out)


def test_the_program_in_mesa_gives_the_same_series():
    pytest.importorskip("mesa", reason="Mesa is not here: pip install mesa")
    names = {}
    for block in programs()[:3]:
        run_block(PAGE, block, names)
    assert names["result"].series["adopts"].tolist() == names["in_mesa"]["adopts"].tolist()
