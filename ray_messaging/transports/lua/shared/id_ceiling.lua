-- Shared by take_mailbox.lua, renew_leases.lua and raise_entry_ids.lua: how ids of entries go on rising when a server comes back without its last
-- writes and with a clock that is behind. Ids are the server's time, readers go by them, and a reader may have read what
-- the server does not know any more.
--
-- meta  hash: life = run id of the server's process that saw to ids last, ceiling = ms above all ids that were given out
--       by then, and for as long after it as a lease lasts: it is written that long ahead, so that it is not among what
--       is lost
local function milliseconds()
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end

local function life_of_server()
  return redis.call('INFO', 'server'):match('run_id:(%w+)') or ''
end

local function lift_ceiling(meta, lease_ms)
  local now, had = milliseconds(), redis.call('HMGET', meta, 'life', 'ceiling')
  if not had[1] then redis.call('HSET', meta, 'life', life_of_server()) end
  if now + lease_ms > tonumber(had[2] or 0) then
    redis.call('HSET', meta, 'ceiling', string.format('%.0f', now + lease_ms))
  end
  return now
end
