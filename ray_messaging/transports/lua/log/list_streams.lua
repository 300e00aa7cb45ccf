#!lua flags=no-writes
-- Return the streams that the event log must read, without the log stream.
--
-- KEYS[1] changes  hash: its fields are the mailboxes
-- KEYS[2] ended    set: <name>:<born> of streams whose mailbox is gone
-- ARGV[1] prefix of this experiment's keys: state:<mailbox> is a hash with born
-- Returns {{<name>:<born> of mailboxes...}, {those that ended...}}
local live = {}
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  local born = redis.call('HGET', ARGV[1] .. 'state:' .. name, 'born')
  if born then live[#live + 1] = name .. ':' .. born end
end
return {live, redis.call('SMEMBERS', KEYS[2])}
