#!lua flags=allow-oom
-- Raise a sender's epoch and return its state; whoever sent under this name before is fenced.
--
-- KEYS[1] sender  hash: epoch, s:<mailbox> = last seq
-- ARGV[1] keep in ms, or 0 for ever
-- Returns the hash, field by field
redis.call('HINCRBY', KEYS[1], 'epoch', 1)
if ARGV[1] ~= '0' then redis.call('PEXPIRE', KEYS[1], ARGV[1]) else redis.call('PERSIST', KEYS[1]) end
return redis.call('HGETALL', KEYS[1])
