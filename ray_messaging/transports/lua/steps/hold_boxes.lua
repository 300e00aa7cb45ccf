#!lua flags=allow-oom
-- Keep sealed boxes until a hold has handled them. Allowed when memory is full, because it frees some.
--
-- KEYS[1] steps, KEYS[2] steps:holds: see step_barrier.lua
-- ARGV[1] prefix of this experiment's keys  [2] name of the hold  [3] last step that it has handled; "": it ends
-- Returns 1; 0: the experiment has no steps
if redis.call('HEXISTS', KEYS[1], 'settings') == 0 then return 0 end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[2], ARGV[2])
else
  local before = redis.call('HGET', KEYS[2], ARGV[2])
  if not before or tonumber(before) < tonumber(ARGV[3]) then redis.call('HSET', KEYS[2], ARGV[2], ARGV[3]) end
end
drop_boxes(ARGV[1])
release(ARGV[1])
tell(ARGV[1], 'hold')
return 1
