-- Set the steps of an experiment up, unless they are.
--
-- KEYS[1] steps  hash: see step_barrier.lua
-- ARGV[1] the settings (JSON)  [2...] field, value of each setting that the scripts use
-- Returns the settings that hold
if redis.call('HSETNX', KEYS[1], 'settings', ARGV[1]) == 1 then
  redis.call('HSET', KEYS[1], 'sealed', -1, 'latest', -1, 'dropped', -1, 'asked', -1, 'opened', -1, unpack(ARGV, 2))
end
return redis.call('HGET', KEYS[1], 'settings')
