#!lua flags=allow-oom
-- Add an undecodable frame to the dead letters, once: a restarted reader meets it again. Allowed when memory is full,
-- because commits that free some may wait behind that frame.
--
-- KEYS[1] dead      stream: see dead_letter_retention.lua
-- KEYS[2] state     hash of the mailbox: born, entry = its cursor (of the log stream: logged); none: the mailbox is gone,
--                   and what was unread is dead
-- ARGV[1] prefix of this experiment's keys: rejected:<mailbox>:<born> is a stream with the ids of the entries that were
--         rejected and are not handled yet  [2] mailbox  [3] entry  [4] reason  [5] frame  [6] bytes of dead letters that
--         are kept
-- Returns 1, or 0 where it is there already
local state = redis.call('HMGET', KEYS[2], 'born', 'entry', 'logged')
if not state[1] then return 0 end
local rejected = ARGV[1] .. 'rejected:' .. ARGV[2] .. ':' .. state[1]
-- A reader takes its entries in their order, so that one below the last id is known.
local added = redis.pcall('XADD', rejected, ARGV[3], 'r', '')
if type(added) == 'table' and added.err then
  if added.err:find('equal or smaller', 1, true) then return 0 end
  return added
end
redis.call('XTRIM', rejected, 'MINID', state[2] or state[3] or '0-0')
lay(KEYS[1], ARGV[1], ARGV[6], {'mailbox', ARGV[2], 'entry', ARGV[3], 'row', '0', 'reason', ARGV[4], 'f', ARGV[5]})
return 1
