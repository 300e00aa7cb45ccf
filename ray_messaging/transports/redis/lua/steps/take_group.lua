#!lua flags=allow-oom
-- Take a group to drive it. Allowed when memory is full: its steps free some.
--
-- KEYS[1] steps  [2] step:<group>: see step_barrier.lua
-- ARGV[1] prefix of this experiment's keys  [2] group  [3] the driver's task  [4] how often it was started  [5] lease in ms
-- ARGV[6] the lease of another driver, as the caller has seen it for as long as it lasts, or ""  [7] the first step that the
--         driver does not run, or ""
-- Returns {1, attempt, closed, state or false, until or false}; {2, task, start, lease, ms that it lasts} of another driver
-- that has it; {0, attempt} a later start of this driver has it; {-1} no such group has joined

-- A group leaves where its driver ends before that of another group, so that it holds up nobody. Groups that have all ended
-- in the same step stay: their drivers may begin again. `mine` is where this driver ends.
local function settle_ends(mine)
  local set, groups, last, changed = ARGV[1] .. 'steps:closed', {}, mine, false
  local from = tonumber(redis.call('ZSCORE', set, ARGV[2]))
  local closed = redis.call('ZRANGE', set, 0, -1, 'WITHSCORES')
  for i = 1, #closed, 2 do
    local key = ARGV[1] .. 'step:' .. closed[i]
    local group = redis.call('HMGET', key, 'ends', 'until', 'ending')
    local ends = tonumber(group[1])
    if ends and (not group[2] or group[3]) then
      local driven = ends > closed[i + 1] + 1
      groups[#groups + 1] = {key = key, name = closed[i], ends = ends, ending = group[3], driven = driven}
      if driven then last = math.max(last, ends) end
    end
  end
  for _, group in ipairs(groups) do
    local leaves = group.ends < last
    if not group.driven then leaves = group.ends < mine and group.ends > from + 1 end
    if leaves then
      redis.call('HSET', group.key, 'until', group.ends, 'ending', 1)
      if not group.driven then redis.call('ZREM', set, group.name) end
    elseif group.ending then
      redis.call('HDEL', group.key, 'until', 'ending')
    end
    changed = changed or (leaves and not group.driven)
  end
  if changed then
    seal(ARGV[1])
    tell(ARGV[1], 'left')
  end
end

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
local counts = redis.call('ZSCORE', ARGV[1] .. 'steps:closed', ARGV[2])
if counts and ARGV[7] ~= '' and redis.call('HGET', KEYS[2], 'ends') ~= ARGV[7] then
  redis.call('HSET', KEYS[2], 'ends', ARGV[7])
  settle_ends(tonumber(ARGV[7]))
end
local left = redis.call('HMGET', KEYS[2], 'closed', 'state', 'until')
return {1, tonumber(attempt), tonumber(left[1]), left[2], left[3] and tonumber(left[3])}
