-- Enter a mailbox of another shard in the directory, on the control shard. Its mailbox is there already.
--
-- KEYS[1] meta     hash: directory = version, wide: see take_mailbox.lua
-- KEYS[2] entries  hash: mailbox -> <version of its last change>:<shard>:<born>
-- KEYS[3] entered  hash: mailbox -> record (msgpack)
-- ARGV[1] directory version the record was checked against  [2] mailbox  [3] record  [4] <shard>:<born>
-- ARGV[5] 1: it may take all agents' channels by one pattern
-- Returns the version; -1: it is not at that version
local version = redis.call('HGET', KEYS[1], 'directory') or '0'
if version ~= ARGV[1] then return -1 end
local known = redis.call('HGET', KEYS[2], ARGV[2])
if known and known:match('^%d+:(.*)$') == ARGV[4] and redis.call('HGET', KEYS[3], ARGV[2]) == ARGV[3] then
  return tonumber(version)
end
if ARGV[5] == '1' then redis.call('HSET', KEYS[1], 'wide', 1) end
local raised = redis.call('HINCRBY', KEYS[1], 'directory', 1)
redis.call('HSET', KEYS[3], ARGV[2], ARGV[3])
redis.call('HSET', KEYS[2], ARGV[2], raised .. ':' .. ARGV[4])
return raised
