"""Build the peers' environments, each from a file of pins, and rebuild one after its pins changed."""

import fcntl
import hashlib
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.peers import PEERS

FOLDER = Path("~/.cache/ray_messaging/benchmarks").expanduser()
PINS = Path(__file__).parent / "pins"
STAMP = "pins.sha256"
PIP_LINES = 15  # pip's last lines, shown in an error
PATIENCE_S = 1800
ENVIRONMENTS = (*dict.fromkeys(peer.environment for peer in PEERS if peer.environment), "mesa", "agentscope-0.1.6")


def _pins(name: str) -> Path:
    path = PINS / f"{name}.txt"
    if name not in ENVIRONMENTS or not path.exists():
        raise RuntimeError(f"there is no environment {name!r}, but these: {', '.join(ENVIRONMENTS)}")
    return path


def _stamp(name: str) -> str:
    """Return a digest of the pins and of the Python of the environment."""
    return hashlib.sha256(_pins(name).read_bytes() + sys.version.encode()).hexdigest()


def _is_built(home: Path, name: str) -> bool:
    stamp = home / STAMP
    return stamp.exists() and stamp.read_text() == _stamp(name)


def python(folder: Path, name: str) -> Path:
    """Return the Python of an environment; raises RuntimeError where it is not there, or not of these pins."""
    home = folder / name
    if not _is_built(home, name):
        state = "of other pins" if home.exists() else "not there"
        raise RuntimeError(f"the environment {name} in {folder} is {state}: run `python -m benchmarks peers`")
    return home / "bin" / "python"


def build(folder: Path = FOLDER, names: Sequence[str] = ENVIRONMENTS, say: Callable[[str], None] = print) -> None:
    """Build the missing environments. Raises RuntimeError with pip's last lines."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second command waits, and finds them built
        _build(folder, names, say)


def _build(folder: Path, names: Sequence[str], say: Callable[[str], None]) -> None:
    for name in names:
        home, pins = folder / name, _pins(name)
        if _is_built(home, name):
            say(f"{name}: is there")
            continue
        say(f"{name}: installing {sum(1 for line in pins.read_text().splitlines() if '==' in line)} packages ...")
        stamp = _stamp(name)  # before, so that pins that change meanwhile do not pass as built
        shutil.rmtree(home, ignore_errors=True)
        venv.create(home, with_pip=True)
        _install(home, name, pins)
        (home / STAMP).write_text(stamp)
        say(f"{name}: built")


def _install(home: Path, name: str, pins: Path) -> None:
    """Install the pins and nothing else: they name all that is imported, and no more."""
    pip = [home / "bin" / "python", "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    try:
        run = subprocess.run(
            [*pip, "--only-binary", ":all:", "--no-deps", "-r", pins],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{name}: pip did not end within {PATIENCE_S} s; is the package index slow?") from error
    if run.returncode:
        said = "\n".join(run.stdout.splitlines()[-PIP_LINES:])
        raise RuntimeError(
            f"{name}: pip ended with {run.returncode}; its last words:\n{said}\n"
            f"It needs a package index, and wheels of {pins.name} for Python {sys.version.split()[0]}."
        )
