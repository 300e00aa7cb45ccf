#!lua flags=allow-oom
-- Take a group to drive it. Allowed when memory is full: its steps free some.
--
-- KEYS[1] steps  [2] step:<group>: see step_barrier.lua
-- ARGV[1] prefix of this experiment's keys  [2] group  [3] the driver's task  [4] how often it was started  [5] lease in ms
-- ARGV[6] the lease of another driver, as the caller has seen it for as long as it lasts, or ""  [7] the first step in
--         which the group does not count any more, or "": it stays
-- Returns {1, attempt, closed, state or false, until or false}; {2, task, start, lease, ms that it lasts} of another driver
-- that has it; {0, attempt} a later start of this driver has it; {-1} no such group has joined
local now = redis.call('HMGET', KEYS[2], 'since', 'attempt', 'task', 'start', 'beat', 'lease_ms')
if not now[1] then return {-1} end
local task, start, again = now[3] or '', tonumber(now[4] or 0), false
if task == ARGV[3] then
  if tonumber(ARGV[4]) < start then return {0, tonumber(now[2])} end
  again = tonumber(ARGV[4]) == start
elseif task ~= '' then
  local lease = now[2] .. ':' .. (now[5] or 0)
  if lease ~= ARGV[6] then return {2, task, start, lease, tonumber(now[6])} end
end
local attempt = now[2]
if not again then
  attempt = raise_number(KEYS[2], 'attempt')
  abandon(ARGV[1], ARGV[2])
  redis.call('HSET', KEYS[2], 'task', ARGV[3], 'start', ARGV[4], 'lease_ms', ARGV[5], 'changed', milliseconds())
end
redis.call('HINCRBY', KEYS[2], 'beat', 1)
local was = redis.call('HMGET', KEYS[2], 'closed', 'until', 'ending')
if redis.call('ZSCORE', ARGV[1] .. 'steps:closed', ARGV[2]) and (not was[2] or was[3]) then
  if ARGV[7] == '' then
    redis.call('HDEL', KEYS[2], 'until', 'ending')
  elseif tonumber(ARGV[7]) > tonumber(was[1]) + 1 then
    redis.call('HSET', KEYS[2], 'until', ARGV[7], 'ending', 1)
  end
end
local left = redis.call('HMGET', KEYS[2], 'closed', 'state', 'until')
return {1, tonumber(attempt), tonumber(left[1]), left[2], left[3] and tonumber(left[3])}
