#!lua flags=allow-oom
-- End leases that an observer has seen unchanged for as long as they last. A leased mailbox is removed with its lease,
-- unless its messager is still connected: then that process only stands still, and messages wait for it.
--
-- KEYS as in load_directory.lua
-- ARGV[1] prefix of this experiment's keys: lease:<mailbox> is a string (see renew_lease.lua), state:<mailbox> a hash (leased)
-- ARGV[2] bytes of dead letters that are kept
-- ARGV[3...] for each: mailbox, its lease as it was seen
-- Returns how many ended
local ended = 0
for arg = 3, #ARGV, 2 do
  local name = ARGV[arg]
  local lease = ARGV[1] .. 'lease:' .. name
  if redis.call('GET', lease) == ARGV[arg + 1] then
    local leased = redis.call('HGET', ARGV[1] .. 'state:' .. name, 'leased') == '1'
    local connected = leased and redis.pcall('PUBLISH', ARGV[1] .. 'own:ear:' .. name, '') or 0
    if not leased then
      redis.call('DEL', lease)
      ended = ended + 1
    elseif connected == 0 or type(connected) == 'table' then
      bury(KEYS, ARGV[1], name, 'the lease of its messager has expired', ARGV[2])
      ended = ended + 1
    end
  end
end
return ended
