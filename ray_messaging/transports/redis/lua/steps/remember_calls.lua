-- Keep results of calls that a group has made in its open step, until that is closed.
--
-- KEYS[1] step:<group>  [2] step:<group>:results: see step_barrier.lua
-- ARGV[1] the driver's attempt  [2] step  [3] how many results there are, then for each its name and its bytes
-- Returns 1; 0: the attempt does not have the step open
local now = redis.call('HMGET', KEYS[1], 'attempt', 'open')
if now[1] ~= ARGV[1] or now[2] ~= ARGV[2] then return 0 end
for i = 4, 3 + 2 * tonumber(ARGV[3]), 2 do redis.call('HSET', KEYS[2], ARGV[2] .. ':' .. ARGV[i], ARGV[i + 1]) end
return 1
