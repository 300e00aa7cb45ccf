#!lua flags=allow-oom
-- Add a message whose handler has failed to the dead letters. Allowed when memory is full, because its commit frees some.
--
-- KEYS[1] dead   stream: see dead_letter_retention.lua
-- KEYS[2] state  hash of the mailbox: born, exclusive, failures = how many such messages there were, failed = the last of
--                them, <entry>.<row> each, as this call may be repeated; none: the mailbox is gone, and what was
--                uncommitted is dead
-- KEYS[3] meta   hash: born
-- ARGV[1] prefix of this experiment's keys  [2] mailbox  [3] entry  [4] reason  [5] frame of the message  [6] bytes of
--         dead letters that are kept  [7] row of the entry
-- Returns 1, or 0 where it is there already
local state = redis.call('HMGET', KEYS[2], 'born', 'exclusive', 'failed')
if not state[1] then return 0 end
local this, failed = ARGV[3] .. '.' .. ARGV[7], {}
for each in (state[3] or ''):gmatch('%S+') do
  if each == this then return 0 end
  failed[#failed + 1] = each
end
failed[#failed + 1] = this
redis.call('HSET', KEYS[2], 'failed', table.concat(failed, ' ', math.max(1, #failed - 255)))
redis.call('HINCRBY', KEYS[2], 'failures', 1)
lay(KEYS[1], ARGV[1], ARGV[6], {'mailbox', ARGV[2], 'entry', ARGV[3], 'row', '0', 'reason', ARGV[4],
    'born', redis.call('HGET', KEYS[3], 'born') or state[1], 'exclusive', state[2] or '0', 'acked', '', 'f', ARGV[5]})
return 1
