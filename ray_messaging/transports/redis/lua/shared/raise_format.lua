-- Shared by claim_experiment.lua and take_mailbox.lua: note in the meta hash that code of a format writes into this experiment. Code that
-- knows lower formats only is refused from then on, see raise_entry_ids.lua.
local function raise_format(meta, format)
  if tonumber(redis.call('HGET', meta, 'format') or 0) < tonumber(format) then redis.call('HSET', meta, 'format', format) end
end
