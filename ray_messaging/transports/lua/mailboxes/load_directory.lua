#!lua flags=allow-oom
-- Return what changed in the directory since a version. First mailboxes leave it whose lease has expired, and among those
-- that outlive their lease the ones whose state is gone: nobody can write to them.
--
-- KEYS[1] meta     hash: directory = version, log = 1 while an event log is registered, schemas: see set_schema.lua,
--                  audiences: see set_audience.lua, hosts: see date_change.lua
-- KEYS[2] records  hash: mailbox -> record (msgpack)
-- KEYS[3] changes  hash: mailbox -> version of its last change
-- KEYS[4] dead     stream: frames nobody will read, see dead_letter_retention.lua
-- ARGV[1] since    [2] prefix of this experiment's keys (for mailboxes that are to be taken out: see dead_letter_retention.lua)
-- ARGV[3] bytes of dead letters that are kept
-- Returns {version, {mailboxes...}, {records changed since...}, log, schemas, audiences, hosts}
local all, names, changed = redis.call('HGETALL', KEYS[3]), {}, {}
for i = 1, #all, 2 do
  local name = all[i]
  local state = ARGV[2] .. 'state:' .. name
  local leased = redis.call('HGET', state, 'leased')
  if leased ~= '0' and redis.call('EXISTS', ARGV[2] .. 'lease:' .. name) == 0 then
    bury(KEYS, ARGV[2], name, 'the lease of its messager has expired', ARGV[3])
  else
    names[#names + 1] = name
    if tonumber(all[i + 1]) > tonumber(ARGV[1]) then changed[#changed + 1] = redis.call('HGET', KEYS[2], name) end
  end
end
local meta = redis.call('HMGET', KEYS[1], 'directory', 'log', 'schemas', 'audiences', 'hosts')
return {tonumber(meta[1] or 0), names, changed, meta[2] and 1 or 0, meta[3] or '{}', meta[4] or '{}', meta[5] or ''}
