#!lua flags=no-writes
-- Return the progress of all groups.
--
-- KEYS[1] steps, KEYS[2] steps:closed, KEYS[3] steps:holds: see step_barrier.lua
-- ARGV[1] prefix of this experiment's keys
-- Returns {{sealed, latest, target or false, news, mode}, {hold, last step...}, then for each group {its name, closed, open or
-- false, task, start, ms since its last change, since, until or false}}; nothing: the experiment has no steps
local now = redis.call('HMGET', KEYS[1], 'sealed', 'latest', 'target', 'news', 'wait_for')
local all = redis.call('HMGET', KEYS[1], 'opened', 'opened_ms')
if not now[1] then return {} end
local reply, clock = {now, redis.call('HGETALL', KEYS[3])}, milliseconds()
for _, name in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
  local group = redis.call('HMGET', ARGV[1] .. 'step:' .. name, 'closed', 'open', 'task', 'start', 'changed', 'since', 'until',
                           'ahead')
  if not is_open(tonumber(group[1]) + 1, group[2], group[8], all[1]) then
    group[2] = false
  elseif group[2] == all[1] then
    group[5] = math.max(tonumber(group[5]), tonumber(all[2]))  -- it has waited until then
  end
  group[5] = string.format('%.0f', math.max(0, clock - tonumber(group[5])))
  reply[#reply + 1] = {name, unpack(group, 1, 7)}
end
return reply
