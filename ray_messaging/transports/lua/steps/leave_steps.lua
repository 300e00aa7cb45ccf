#!lua flags=allow-oom
-- End the membership of a group. Allowed when memory is full: others wait for it.
--
-- KEYS[1] steps  [2] step:<group>: see step_barrier.lua
-- ARGV[1] prefix of this experiment's keys  [2] group  [3] 1: at once, and its open step is given up
-- Returns the first step in which it does not count; -1: no such group has joined
local now = redis.call('HGET', KEYS[1], 'latest')
local group = redis.call('HMGET', KEYS[2], 'since', 'until', 'closed')
if not group[1] then return -1 end
local closed = tonumber(group[3])
local ends = tonumber(group[2] or math.max(tonumber(now) + 2, tonumber(group[1])))
if ARGV[3] == '1' and closed + 1 < ends then
  ends = closed + 1
  abandon(ARGV[1], ARGV[2])
  redis.call('UNLINK', KEYS[2] .. ':results')
end
redis.call('HSET', KEYS[2], 'until', ends, 'changed', milliseconds())
redis.call('HDEL', KEYS[2], 'ending')
if closed + 1 >= ends then redis.call('ZREM', ARGV[1] .. 'steps:closed', ARGV[2]) end
seal(ARGV[1])
tell(ARGV[1], 'left')
return ends
