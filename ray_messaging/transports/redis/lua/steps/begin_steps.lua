-- Set the steps of an experiment up, unless they are. Of several servers the first one has them, and all mailboxes: none
-- was placed by then (see place_mailbox.lua).
--
-- KEYS[1] steps  hash: see step_barrier.lua  [2] homes: as in place_mailbox.lua
-- ARGV[1] the settings (JSON)  [2...] field, value of each setting that the scripts use
-- Returns the settings that hold; false: mailboxes were placed
if redis.call('EXISTS', KEYS[2]) == 1 then return false end
if redis.call('HSETNX', KEYS[1], 'settings', ARGV[1]) == 1 then
  redis.call('HSET', KEYS[1], 'sealed', -1, 'latest', -1, 'dropped', -1, 'asked', -1, 'opened', -1, unpack(ARGV, 2))
end
return redis.call('HGET', KEYS[1], 'settings')
