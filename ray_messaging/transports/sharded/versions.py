"""Versions of a directory over several shards: one number that holds the version of each."""

from collections.abc import Sequence

_BITS = 64  # of a shard's version; a server's counter stays below
_MASK = (1 << _BITS) - 1


def packed(versions: Sequence[int]) -> int:
    """Return one number for the versions of all shards: it grows where none of them goes back."""
    return sum(version << _BITS * shard for shard, version in enumerate(versions))


def unpacked(version: int, shards: int) -> list[int]:
    """Return the version of each shard; -1 for each where there is none."""
    return [-1] * shards if version < 0 else [version_of(version, shard) for shard in range(shards)]


def version_of(version: int, shard: int) -> int:
    """Return the version of one shard."""
    return version >> _BITS * shard & _MASK
