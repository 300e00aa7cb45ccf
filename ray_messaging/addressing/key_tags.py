"""Hash tags of keys, by which large messages are spread over the primaries of a Redis Cluster."""

from functools import cache
from itertools import count

from redis.crc import REDIS_CLUSTER_HASH_SLOTS, key_slot

from ray_messaging.addressing.server_keys import Keys


def shard_keys(exp_id: str, shard: int, in_cluster: int) -> Keys:
    """Return the Redis keys of an experiment on one shard. Large messages are spread over several shards.

    `in_cluster` is the number of shards in one Redis Cluster (1: each shard has its own server).
    """
    return Keys(exp_id, key_tags(exp_id, in_cluster)[shard] if in_cluster > 1 else "")


@cache
def key_tags(exp_id: str, shards: int) -> tuple[str, ...]:
    """Return, for each shard, the text that follows the experiment's name in the hash tag of the shard's keys.

    The text of the first shard is empty. This shard has all keys of the experiment except those of bodies on other
    shards. The slots of the cluster are divided into equal ranges, one for each shard, and each shard's hash tag has a
    slot in the shard's own range. In most clusters, each primary has one range of slots, so the primaries get about
    equally many shards. No other experiment has these hash tags, because the texts contain a slash, and names do not.
    """
    part_of_first = _part_of(exp_id, shards)
    parts = [part for part in range(shards) if part != part_of_first]
    return ("", *(_tag(exp_id, shard, shards, part) for shard, part in enumerate(parts, 1)))


def _tag(exp_id: str, shard: int, shards: int, part: int) -> str:
    tags = (f"/{shard}.{number}" for number in count())
    return next(tag for tag in tags if _part_of(exp_id + tag, shards) == part)


def _part_of(tag: str, parts: int) -> int:
    return key_slot(tag.encode()) * parts // REDIS_CLUSTER_HASH_SLOTS
