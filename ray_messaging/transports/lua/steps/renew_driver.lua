#!lua flags=allow-oom
-- Change the lease of a group's driver, or give the group up. Allowed when memory is full.
--
-- KEYS[1] steps  [2] step:<group>: see step_barrier.lua
-- ARGV[1] prefix of this experiment's keys  [2] group  [3] the driver's attempt  [4] 1: it goes on, 0: it gives the group up
-- Returns 1; 0: a later driver has the group; -1: the server knows neither
local has = has_group(redis.call('HGET', KEYS[2], 'attempt'), ARGV[3])
if has ~= 1 then return has end
if ARGV[4] == '1' then
  redis.call('HINCRBY', KEYS[2], 'beat', 1)
else
  abandon(ARGV[1], ARGV[2])
  raise_number(KEYS[2], 'attempt')  -- nobody's
  redis.call('HSET', KEYS[2], 'task', '', 'start', 0, 'changed', milliseconds())
end
return 1
