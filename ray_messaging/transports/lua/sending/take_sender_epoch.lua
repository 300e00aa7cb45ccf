#!lua flags=allow-oom
-- Raise a sender's epoch and return its state; earlier senders under this name are fenced.
--
-- KEYS[1] sender  hash: epoch, s:<mailbox> = last seq, taker = who raised it last
-- ARGV[1] keep in ms, or 0 for ever  [2] the epoch that the caller holds ("": none, as it begins)  [3] the caller: an
--         answer may have been lost, so that it holds a lower epoch than it took
-- Returns the hash, field by field; nothing where a successor has raised it since; {-1} where there is none any more
local now, held = redis.call('HMGET', KEYS[1], 'epoch', 'taker'), tonumber(ARGV[2])
if held and not now[1] then return {-1} end
if held and tonumber(now[1]) > held and now[2] ~= ARGV[3] then return {} end
raise_number(KEYS[1], 'epoch', held)
redis.call('HSET', KEYS[1], 'taker', ARGV[3])
if ARGV[1] ~= '0' then redis.call('PEXPIRE', KEYS[1], ARGV[1]) else redis.call('PERSIST', KEYS[1]) end
return redis.call('HGETALL', KEYS[1])
