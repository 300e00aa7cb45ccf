-- Make a group a member: it counts from a step the senders of which nobody has opened yet. The supervisor, which comes after
-- all senders, counts from the open step, or from the next one where none is open.
--
-- KEYS[1] steps  [2] step:<group>: see step_barrier.lua  [3] state of its mailbox: stepped = 1 from now on
-- ARGV[1] prefix of this experiment's keys  [2] group  [3] 1: also where it has left with its driver
-- Returns the first step in which it counts; -1: it is still leaving; -2: the experiment has no steps
local now = redis.call('HMGET', KEYS[1], 'latest', 'settings', 'sealed')
local group = redis.call('HMGET', KEYS[2], 'since', 'until', 'closed', 'ending')
if not now[2] then return -2 end
if ARGV[2] ~= SUPERVISOR then redis.call('HSET', KEYS[3], 'stepped', 1) end
if group[1] and not group[2] then return tonumber(group[1]) end
if group[4] and ARGV[3] ~= '1' then return tonumber(group[1]) end
if group[1] and tonumber(group[3]) + 1 < tonumber(group[2]) then return -1 end
local latest = tonumber(now[1])
local since = ARGV[2] == SUPERVISOR and latest or latest < 0 and 0 or latest + 2
since = math.max(since, tonumber(now[3]) + 1)
redis.call('HSET', KEYS[2], 'since', since, 'closed', since - 1, 'changed', milliseconds())
redis.call('HDEL', KEYS[2], 'until', 'ending')
redis.call('ZADD', ARGV[1] .. 'steps:closed', since - 1, ARGV[2])
if ARGV[2] ~= SUPERVISOR then redis.call('HINCRBY', KEYS[1], 'joined', 1) end
seal(ARGV[1])  -- where all others count from a later step, too
release(ARGV[1])  -- where it was the last one that step 0 waited for
tell(ARGV[1], 'joined')
return since
