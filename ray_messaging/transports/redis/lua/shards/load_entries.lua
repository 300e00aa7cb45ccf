#!lua flags=no-writes
-- Return the mailboxes of other shards that are in the directory, and the records that changed since a version.
--
-- KEYS[1] meta  hash: directory = version   KEYS[2] entries, KEYS[3] entered: see enter_mailbox.lua
-- ARGV[1] since
-- Returns {version, {mailbox, entry...}, {records changed since...}}
local all, changed = redis.call('HGETALL', KEYS[2]), {}
for i = 1, #all, 2 do
  if tonumber(all[i + 1]:match('^%d+')) > tonumber(ARGV[1]) then
    changed[#changed + 1] = redis.call('HGET', KEYS[3], all[i])
  end
end
return {tonumber(redis.call('HGET', KEYS[1], 'directory') or 0), all, changed}
