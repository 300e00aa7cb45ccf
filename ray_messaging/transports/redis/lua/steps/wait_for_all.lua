-- Have each group wait for all others, whatever the settings say.
--
-- KEYS[1] steps: see step_barrier.lua
-- ARGV[1] prefix of this experiment's keys
-- Returns 1; -2: the experiment has no steps
if redis.call('HEXISTS', KEYS[1], 'settings') == 0 then return -2 end
redis.call('HSET', KEYS[1], 'wait_for', 'all')
return 1
