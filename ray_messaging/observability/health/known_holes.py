"""Versions of Redis and Valkey with known security holes, taken from the release notes of both projects."""

from collections.abc import Mapping
from typing import Final

from ray_messaging.observability.health.findings import Finding, ok, warning

AS_OF: Final = "July 2026"  # the month of the latest security releases in MENDED
# For each line of releases, such as 7.2, the first release without known holes. Other lines get no fixes, unless they
# are newer than all of these.
MENDED: Final[Mapping[str, tuple[tuple[int, int, int], ...]]] = {
    "Redis": ((7, 2, 15), (7, 4, 10), (8, 2, 8), (8, 4, 5), (8, 6, 5), (8, 8, 1)),
    "Valkey": ((7, 2, 14), (8, 0, 10), (8, 1, 9), (9, 0, 5), (9, 1, 1)),
}
_REMEDY: Final = (
    "update the server. A distribution's package may have the fixes under the same version number: its changelog "
    "tells (apt-get changelog redis-server)"
)


def check_known_holes(info: Mapping[str, str]) -> Finding:
    """Return a finding about the version of a server, given the server's answer to the command INFO."""
    kind = "Valkey" if "valkey_version" in info else "Redis"
    text = info.get(f"{kind.lower()}_version", "")
    parts = text.split(".")
    version = tuple(int(part) for part in parts if part.isdecimal())
    if len(version) < len(parts) or not version:
        # A version that has other parts than numbers is somebody's own build, about which nothing is known.
        return ok("server version", f"{kind} {text or 'of an unknown version'}")
    mended = {each[:2]: each for each in MENDED[kind]}
    line = version[:2]
    if line > max(mended) or (line in mended and version >= mended[line]):
        return ok("server version", f"{kind} {text} has no security holes that were known in {AS_OF}")
    if line in mended:
        return warning(
            "server version",
            f"{kind} {text} has known security holes, which {kind} {_text(mended[line])} closes",
            _REMEDY,
        )
    lines = ", ".join(map(_text, mended.values()))
    return warning(
        "server version",
        f"{kind} {text} has known security holes, and this release line gets no fixes; releases without known holes "
        f"are {lines}",
        _REMEDY,
    )


def _text(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))
