"""Feed millions of damaged inputs to all decoders of outside bytes, and count the outcomes.

Most inputs are valid ones with a changed part and a corrected checksum, so that they pass the first checks. The right
outcomes: the input is decoded, and every column can be read and written again; or it is refused with the right error
(FrameError; the lane ends the connection). Any other outcome, an endless one, and one that
needs more than 1 GiB, is a finding and written to a file.

python tests/fuzz [--runs 1000000] [--target frames|verdicts|...|all] [--workers 2] [--seed 1] [--json FILE]
python tests/fuzz --guided 600 --target frames     # coverage-guided, by atheris; installed into --tools
"""

import argparse
import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.table import Table

TESTS = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TESTS), str(TESTS.parent)]  # in place of this folder
ATHERIS = "atheris==3.0.0"
CHUNK = 2_000
CHUNK_S = 300  # a busy machine may be a hundred times slower; an endless input is found all the same
MEMORY_BYTES = 2**30


def main():
    """Run as the command line says; exit with 1 on a finding."""
    from support.fuzzing import TARGETS

    options = read_options(list(TARGETS))
    names = list(TARGETS) if options.target == "all" else [options.target]
    if options.guided:
        sys.exit(max(run_guided(name, options) for name in names))
    results = [run_target(name, options) for name in names]
    show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    sys.exit(any(result["findings"] for result in results))


def read_options(targets):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1_000_000, help="inputs for each target")
    parser.add_argument("--target", choices=[*targets, "all"], default="frames")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--guided", type=int, default=0, metavar="SECONDS", help="let atheris look for new paths")
    parser.add_argument(
        "--findings", type=Path, default=Path("/tmp/ray_messaging-fuzz-findings"), help="where inputs are written"
    )
    parser.add_argument("--tools", type=Path, default=Path("/tmp/ray_messaging-fuzz-tools"))
    return parser.parse_args()


def run_target(name, options):
    """Run the inputs of one target in several processes, in chunks with seeds of their own."""
    chunks = [(name, options.seed + low, min(CHUNK, options.runs - low)) for low in range(0, options.runs, CHUNK)]
    total = Counter()
    findings = []
    began = time.perf_counter()
    with ProcessPoolExecutor(options.workers, initializer=prepare) as pool:
        for counts, found in pool.map(run_chunk, chunks, chunksize=8):
            total += Counter(counts)
            findings += found
    took_s = time.perf_counter() - began
    return {
        "target": name,
        "ran": total["ran"],
        "decoded": total["decoded"],
        "refused": total["refused"],
        "findings": save(name, findings, options.findings),
        "seconds": round(took_s, 1),
        "per_second": round(total["ran"] / took_s),
        "seed": options.seed,
    }


def prepare():
    """Limit the memory of a process: an input that needs gigabytes fails here."""
    from support import fuzzing  # noqa: F401 - before memory is counted

    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, resource.RLIM_INFINITY))


def run_chunk(order):
    """Run some inputs; return how many were decoded and refused, and the findings as (input, error)."""
    return asyncio.run(run_inputs(*order))


async def run_inputs(name, seed, count):
    from support.fuzzing import TARGETS, inputs

    target = TARGETS[name]()
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(CHUNK_S)
    decoded, findings = 0, []
    for data in inputs(target, seed, count):
        try:
            decoded += target.check(data)
        except BaseException as error:  # noqa: BLE001 - any error is a finding
            findings.append((data, f"{type(error).__name__}: {error}"))
    signal.alarm(0)
    refused = count - decoded - len(findings)
    return {"ran": count, "decoded": decoded, "refused": refused}, findings


def too_long(*_):
    raise TimeoutError(f"no end after {CHUNK_S} s")


def save(name, findings, folder):
    """Write each finding's input to a file; return the files with their errors."""
    if findings:
        folder.mkdir(parents=True, exist_ok=True)
    told = []
    for number, (data, error) in enumerate(findings):
        path = folder / f"{name}-{number}.bin"
        path.write_bytes(data)
        told.append({"file": str(path), "error": error[:500]})
    return told


def show(results):
    """Print a table, and each finding."""
    table = Table(title="Damaged inputs: decoded, or refused as they should be; anything else is a finding")
    for column in ("target", "ran", "decoded", "refused", "findings", "seconds", "a second"):
        table.add_column(column, justify="left" if column == "target" else "right")
    for found in results:
        counts = [found["ran"], found["decoded"], found["refused"], len(found["findings"])]
        table.add_row(found["target"], *(f"{n:,}" for n in [*counts, found["seconds"], found["per_second"]]))
    console = Console()
    console.print(table)
    for found in results:
        for finding in found["findings"][:20]:
            console.print(f"{finding['file']}: {finding['error']}", markup=False)


def run_guided(name, options):
    """Run atheris, which is installed into a folder of its own, on one target; return its exit code (0: no finding)."""
    tools = options.tools
    if not (tools / "atheris").exists():
        install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tools), ATHERIS]
        subprocess.run(install, check=True)
    options.findings.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tools), str(TESTS), str(TESTS.parent)])}
    limits = [f"-max_total_time={options.guided}", "-max_len=4096", "-rss_limit_mb=2048", "-timeout=60"]
    where = f"-artifact_prefix={options.findings}/{name}-guided-"
    command = [
        sys.executable,
        str(Path(__file__).with_name("guided.py")),
        name,
        *limits,
        where,
        f"-seed={options.seed}",
    ]
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    main()
