#!lua flags=allow-oom
-- Forget that a transaction may write to mailboxes here, as it was not committed. Allowed when memory is full.
--
-- KEYS[1] sender  hash: epoch, a:<mailbox>: see send.lua
-- ARGV[1] the caller's epoch  [2] prefix of this experiment's keys  [3...] mailboxes
-- Returns 1, or 0 where somebody newer sends under this name, or it is gone
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
for arg = 3, #ARGV do
  redis.call('HDEL', KEYS[1], 'a:' .. ARGV[arg])
  redis.call('SREM', ARGV[2] .. 'asking:' .. ARGV[arg], KEYS[1])
end
return 1
