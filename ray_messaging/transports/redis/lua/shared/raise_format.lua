-- Shared by claim_experiment.lua and take_mailbox.lua: note in the meta hash that code of a format writes into this experiment, and over how
-- many shards. Code that knows lower formats only, or was told of another number, is refused from then on, see raise_entry_ids.lua.
local function raise_format(meta, format, shards)
  if tonumber(redis.call('HGET', meta, 'format') or 0) < tonumber(format) then redis.call('HSET', meta, 'format', format) end
  redis.call('HSET', meta, 'shards', shards)
end
