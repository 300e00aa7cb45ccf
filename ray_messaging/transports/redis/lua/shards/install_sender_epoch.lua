#!lua flags=allow-oom
-- Set the epoch that a sender has taken on the control shard, and return its state here; earlier senders are fenced.
--
-- KEYS[1] sender  hash: see take_sender_epoch.lua
-- ARGV[1] the epoch  [2] keep in ms, or 0 for ever  [3] the epoch that the caller held ("": none, as it begins)
--         [4] the caller
-- Returns the hash, field by field; nothing where a successor has a higher epoch; {-1} where there is none any more
local now, epoch, held = redis.call('HMGET', KEYS[1], 'epoch', 'taker'), tonumber(ARGV[1]), tonumber(ARGV[3])
if held and not now[1] then return {-1} end
local found = tonumber(now[1] or 0)
if found > epoch or (held and found > held and now[2] ~= ARGV[4]) then return {} end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'taker', ARGV[4])
if ARGV[2] ~= '0' then redis.call('PEXPIRE', KEYS[1], ARGV[2]) else redis.call('PERSIST', KEYS[1]) end
return redis.call('HGETALL', KEYS[1])
