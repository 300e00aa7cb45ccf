"""Pages of the documentation: their blocks run as they are printed."""

import doctest
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PARTS = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$|^## (?P<section>[^\n]+)$", re.DOTALL | re.MULTILINE)
_CHECK = doctest.OutputChecker()
_LOOSE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE  # `...` stands for parts that differ by run


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, its text, the line where the text begins, and the section it is in."""

    language: str
    text: str
    line: int
    section: str


def blocks(page):
    """Return the fenced blocks of a page, by its path in the repository."""
    text = (ROOT / page).read_text()
    found, section = [], ""
    for match in _PARTS.finditer(text):
        if match["section"]:
            section = match["section"]
        else:
            found.append(Block(match["language"], match["text"], text.count("\n", 0, match.start()) + 2, section))
    return found


def run_block(page, block, namespace):
    """Run a block of Python in a namespace; a traceback names the page and its line."""
    exec(compile("\n" * (block.line - 1) + block.text, page, "exec"), namespace)


def run_page(page, namespace, *, printed, command, without=()):
    """Run a page as a reader would, and compare its output.

    Blocks marked `python` run one after the other. The block `text` behind one has its output. In a block `console`
    the lines with `$` are commands, and the lines behind each are its output.

    Args:
        page: Its path in the repository.
        namespace: The globals of its Python, which the next page may go on with.
        printed: A function without arguments that returns what Python has printed since its last call.
        command: A function that runs a command's words and returns its output.
        without: Sections whose blocks do not run.
    """
    for block in blocks(page):
        if block.section in without:
            continue
        if block.language == "python":
            printed()
            run_block(page, block, namespace)
        elif block.language == "text":
            compare(page, block.line, block.text, printed())
        elif block.language == "console":
            for words, wanted, line in commands(block):
                compare(page, line, wanted, command(words))


def commands(block):
    """Return the commands of a block, each with its wanted output and its line on the page."""
    found = []
    for offset, line in enumerate(block.text.splitlines(keepends=True)):
        if line.startswith("$ "):
            found.append([line[2:].split(), "", block.line + offset])
        else:
            found[-1][1] += line
    return found


def compare(page, line, wanted, got):
    """Fail with both texts unless an output is as the page says. On a busy machine Ray prints warnings between."""
    got = "".join(line for line in got.splitlines(keepends=True) if "(raylet)" not in line)
    assert _CHECK.check_output(wanted, got, _LOOSE), f"{page}:{line} says\n{wanted}\nand the output is\n{got}"
