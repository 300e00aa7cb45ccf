"""Measure the prose of the package and its tests, and the layout of the package.

python .ci/prose.py [--list] [--check] [PATH ...], with the standard library only. --list shows each docstring and file
that counts against a limit; --check fails above a limit. Tests and package keep the limits on docstrings separately.
"""

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "ray_messaging"
TESTS = ROOT / "tests"

WH_WORDS = re.compile(r"\b(?:who|whom|whose|whoever|what|whatever)\b", re.IGNORECASE)
MAX_WH_SHARE = 0.03
MAX_BE_CLASSES = 0
MAX_ROOM_FILES = 12
EXEMPT_ROOMS = {"interception/rules"}  # one rule a file
THIN_LINES = 60
LONG_LINES = 400


@dataclass(frozen=True)
class Docstring:
    """One docstring of a module, class or function."""

    path: Path
    line: int
    is_class: bool
    text: str

    @property
    def has_wh_word(self) -> bool:
        """Return whether it contains who, whom, whose, whoever, what or whatever, in any role."""
        return WH_WORDS.search(self.text) is not None

    @property
    def is_be_class(self) -> bool:
        """Return whether it is a class docstring that begins with the verb "Be"."""
        return self.is_class and self.text.startswith("Be ")

    def __str__(self) -> str:
        return f"{shown(self.path)}:{self.line}: {' '.join(self.text.split())[:140]}"


def main() -> int:
    """Print the figures; return 1 where --check finds one above its limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--list", action="store_true", help="show what counts against a limit")
    parser.add_argument("--check", action="store_true", help="fail where a figure is above its limit")
    parser.add_argument("paths", nargs="*", type=Path, default=[PACKAGE], help="files or folders; default: the package")
    options = parser.parse_args()
    files = sorted(file for path in options.paths for file in python_files(path.resolve()))
    docstrings = [each for file in files for each in docstrings_of(file)]
    lines = {file: len(file.read_text().splitlines()) for file in files}
    rooms = Counter(file.parent for file in files if file.name != "__init__.py")
    flat_rooms = {room: count for room, count in rooms.items() if shown(room) not in EXEMPT_ROOMS}

    wh_words = [each for each in docstrings if each.has_wh_word]
    be_classes = [each for each in docstrings if each.is_be_class]
    share = len(wh_words) / max(1, len(docstrings))
    thin = [file for file in files if file.name != "__init__.py" and lines[file] < THIN_LINES]
    long = [file for file in files if lines[file] > LONG_LINES]
    largest, largest_files = max(flat_rooms.items(), key=lambda item: item[1], default=(PACKAGE, 0))

    print(f"files                                   {len(files):>7,}")
    print(f"lines                                   {sum(lines.values()):>7,}")
    print(f"docstrings                              {len(docstrings):>7,}")
    print(f"docstrings with who, whose, what, ...   {len(wh_words):>7,}  {share:.1%} (limit {MAX_WH_SHARE:.0%})")
    print(f"class docstrings that begin with Be     {len(be_classes):>7,}  (limit {MAX_BE_CLASSES})")
    print(f"files under {THIN_LINES} lines                    {len(thin):>7,}")
    print(f"files above {LONG_LINES} lines                   {len(long):>7,}")
    print(f"files in the largest room, {shown(largest):<12} {largest_files:>7,}  (limit {MAX_ROOM_FILES})")
    tests = [each for file in python_files(TESTS) for each in docstrings_of(file)] if options.paths == [PACKAGE] else []
    tests_wh = [each for each in tests if each.has_wh_word]
    tests_be = [each for each in tests if each.is_be_class]
    tests_share = len(tests_wh) / max(1, len(tests))
    if tests:
        print_tests(tests, tests_wh, tests_be)
    if len(files) > 1:
        print_rooms(docstrings, lines)
    if options.list:
        for title, found in (("who, whose, what, ...", wh_words + tests_wh), ("Be", be_classes + tests_be)):
            print(f"\n{title}:", *found, sep="\n  ")
        print("\nthin files:", *(f"{shown(file)} ({lines[file]})" for file in thin), sep="\n  ")
    too_high = max(share, tests_share) > MAX_WH_SHARE or len(be_classes + tests_be) > MAX_BE_CLASSES
    too_high |= largest_files > MAX_ROOM_FILES
    return 1 if options.check and too_high else 0


def print_tests(tests: list[Docstring], wh_words: list[Docstring], be_classes: list[Docstring]) -> None:
    """Print the figures of the tests' docstrings."""
    share = len(wh_words) / max(1, len(tests))
    print(f"docstrings of the tests                 {len(tests):>7,}")
    print(f"  with who, whose, what, ...            {len(wh_words):>7,}  {share:.1%} (limit {MAX_WH_SHARE:.0%})")
    print(f"  class docstrings that begin with Be   {len(be_classes):>7,}  (limit {MAX_BE_CLASSES})")


def print_rooms(docstrings: list[Docstring], lines: dict[Path, int]) -> None:
    """Print a row for each top-level room."""
    print(f"\n{'room':<20}{'files':>7}{'lines':>8}{'docstrings':>12}{'who, what':>11}{'Be':>5}")
    for room in sorted({room_of(file) for file in lines}):
        files = [file for file in lines if room_of(file) == room]
        found = [each for each in docstrings if room_of(each.path) == room]
        wh_share = sum(each.has_wh_word for each in found) / max(1, len(found))
        nlines = sum(lines[file] for file in files)
        print(
            f"{room:<20}{len(files):>7}{nlines:>8,}{len(found):>12}{wh_share:>11.1%}"
            f"{sum(each.is_be_class for each in found):>5}"
        )


def python_files(path: Path) -> Iterator[Path]:
    """Yield a file, or the Python files of a folder."""
    yield from [path] if path.is_file() else path.rglob("*.py")


def docstrings_of(path: Path) -> Iterator[Docstring]:
    """Yield the docstrings of a file's module, classes and functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield Docstring(path, getattr(node, "lineno", 1), isinstance(node, ast.ClassDef), text)


def room_of(path: Path) -> str:
    """Return the first folder under the package, or "." for its root."""
    parts = Path(shown(path)).parts
    return parts[0] if len(parts) > 1 else "."


def shown(path: Path) -> str:
    """Return a path as seen from the package, else from the repository."""
    base = PACKAGE if path.is_relative_to(PACKAGE) else ROOT if path.is_relative_to(ROOT) else Path("/")
    return str(path.relative_to(base))


if __name__ == "__main__":
    sys.exit(main())
