#!lua flags=no-writes
-- Return the notes on the services of some mailboxes.
--
-- KEYS[1] meta  for its slot alone
-- ARGV[1] prefix of this experiment's keys: state:<mailbox> is a hash, see set_service.lua  [2...] mailboxes
-- Returns {mailbox, note...} of those that have one by their present reader
local found = {}
for arg = 2, #ARGV do
  local now = redis.call('HMGET', ARGV[1] .. 'state:' .. ARGV[arg], 'epoch', 'service', 'served')
  if now[2] and now[1] == now[3] then found[#found + 1], found[#found + 2] = ARGV[arg], now[2] end
end
return found
