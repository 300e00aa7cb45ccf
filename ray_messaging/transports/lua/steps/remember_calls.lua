-- Keep results of calls that a group has made in its open step, until that is closed.
--
-- KEYS[1] step:<group>  [2] step:<group>:results  [3] steps: see step_barrier.lua
-- ARGV[1] the driver's attempt  [2] step  [3] how many results there are, then for each its name and its bytes
-- Returns 1; 0: the attempt does not have the step open
local now, opened = redis.call('HMGET', KEYS[1], 'attempt', 'open', 'ahead'), redis.call('HGET', KEYS[3], 'opened')
if now[1] ~= ARGV[1] or not is_open(tonumber(ARGV[2]), now[2], now[3], opened) then return 0 end
for i = 4, 3 + 2 * tonumber(ARGV[3]), 2 do redis.call('HSET', KEYS[2], ARGV[2] .. ':' .. ARGV[i], ARGV[i + 1]) end
return 1
