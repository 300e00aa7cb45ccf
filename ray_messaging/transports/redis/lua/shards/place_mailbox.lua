-- Return the shard of a mailbox on the control shard, and choose one where the name has none yet. It keeps it for ever:
-- senders count their frames to a name on one shard.
--
-- KEYS[1] meta     hash: placed = how many mailboxes were placed in turn, shards = number of shards
-- KEYS[2] homes    hash: mailbox -> shard
-- KEYS[3] changes  hash: its fields are the mailboxes of the control shard
-- KEYS[4] steps    hash: with steps all mailboxes are on the control shard
-- ARGV[1] mailbox  [2] the shard that is wanted ("": the next in turn, the control shard last)  [3] number of shards
local home = redis.call('HGET', KEYS[2], ARGV[1])
if home then return tonumber(home) end
if redis.call('HEXISTS', KEYS[3], ARGV[1]) == 1 or redis.call('EXISTS', KEYS[4]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'shards', ARGV[3])
home = tonumber(ARGV[2]) or redis.call('HINCRBY', KEYS[1], 'placed', 1) % tonumber(ARGV[3])
redis.call('HSET', KEYS[2], ARGV[1], home)
return home
