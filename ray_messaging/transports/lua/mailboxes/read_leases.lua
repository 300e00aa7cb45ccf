#!lua flags=no-writes
-- Return the current leases of the given mailboxes, and of some others by chance.
--
-- KEYS[1] changes  hash: its fields are the mailboxes
-- ARGV[1] prefix of this experiment's keys: lease:<mailbox> is a string, see renew_lease.lua  [2] how many others
-- ARGV[3...] mailboxes
-- Returns {mailbox, lease...} of those that have one
local names, leases = redis.call('HRANDFIELD', KEYS[1], ARGV[2]), {}
for arg = 3, #ARGV do names[#names + 1] = ARGV[arg] end
for _, name in ipairs(names) do
  local lease = redis.call('GET', ARGV[1] .. 'lease:' .. name)
  if lease then leases[#leases + 1], leases[#leases + 2] = name, lease end
end
return leases
