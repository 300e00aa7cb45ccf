"""Slots of the shards of an experiment in a cluster."""

from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from ray_messaging.addressing.key_tags import key_tags, shard_keys

SLOTS = 16_384
NAMES = st.text("abcXYZ019._-", min_size=1, max_size=40)


@given(NAMES, st.integers(1, 40))
def test_each_shard_has_a_slot_in_another_part_of_all_slots(exp_id, shards):
    slots = [key_slot(shard_keys(exp_id, shard, shards).prefix.encode()) for shard in range(shards)]
    assert sorted(slot * shards // SLOTS for slot in slots) == [*range(shards)]


@given(NAMES, st.integers(1, 40))
def test_the_first_shard_has_the_keys_of_an_experiment_without_shards(exp_id, shards):
    assert key_tags(exp_id, shards)[0] == ""
    assert shard_keys(exp_id, 0, shards).meta == shard_keys(exp_id, 0, 1).meta
    assert shard_keys(exp_id, shards, 1).prefix == f"rm:{{{exp_id}}}:"  # a server of its own
