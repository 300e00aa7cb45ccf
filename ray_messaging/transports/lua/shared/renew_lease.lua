-- Shared by take_mailbox.lua and renew_leases.lua: a lease says <beat>:<ms it lasts>:<ms when it was renewed>, and does not expire. Its
-- messager raises the beat. It is over for whoever has seen one beat for as long as it lasts by a clock of its own, which
-- no step of the server's touches: see end_leases.lua. The time in it is for people, and for who asks whether to look at all.
local function renew_lease(lease, lease_ms, now)
  local last = redis.call('GET', lease)
  local beat = (tonumber(last and last:match('^(%d+):')) or 0) + 1
  redis.call('SET', lease, string.format('%.0f:%s:%.0f', beat, lease_ms, now))
end
