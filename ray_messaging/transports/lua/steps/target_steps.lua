#!lua flags=allow-oom
-- Set the last step that may be opened.
--
-- KEYS[1] steps: see step_barrier.lua
-- ARGV[1] prefix of this experiment's keys  [2] the step; "": no end; "now": the latest that some group has opened
-- Returns it (-1 for no end, too); -2: the experiment has no steps
local now = redis.call('HMGET', KEYS[1], 'latest', 'target')
if not now[1] then return -2 end
local target = ARGV[2]
if target == 'now' then
  target = tonumber(now[1])
  if now[2] then target = math.min(target, tonumber(now[2])) end
end
if target == '' then redis.call('HDEL', KEYS[1], 'target') else redis.call('HSET', KEYS[1], 'target', target) end
release(ARGV[1])
tell(ARGV[1], 'target')
return target == '' and -1 or tonumber(target)
