-- Declare which groups a group hears from a step on. A declaration that holds already changes nothing, also late.
--
-- KEYS[1] steps  [2] steps:hears: see step_barrier.lua
-- ARGV[1] prefix of this experiment's keys  [2] the first step that is read so; "": from the start  [3...] group, groups that
--         it hears (with commas, ascending; * for all), and so on
-- Returns -1; the latest open step, if that is too late; -2: the experiment has no steps
local now = redis.call('HMGET', KEYS[1], 'latest', 'sealed')
local latest, sealed = tonumber(now[1] or -2), tonumber(now[2])
if latest == -2 then return -2 end
local at, changed = math.max(tonumber(ARGV[2]) or 0, 0), {}
for i = 3, #ARGV, 2 do
  local group, names = ARGV[i], ARGV[i + 1]
  if (heard(ARGV[1], group, math.max(at, latest + 1)) or '*') ~= names then changed[group] = names end
end
if next(changed) == nil then return -1 end
if latest >= 0 and at < latest + 2 then return latest end
for group, names in pairs(changed) do
  local kept = {}
  for from, old in (redis.call('HGET', KEYS[2], group) or ''):gmatch('(%d+):([^;]*)') do
    if tonumber(from) < at then
      if tonumber(from) <= sealed + 1 then kept = {} end  -- no step before will be opened
      kept[#kept + 1] = from .. ':' .. old
    end
  end
  kept[#kept + 1] = string.format('%.0f:%s', at, names)
  redis.call('HSET', KEYS[2], group, table.concat(kept, ';'))
end
tell(ARGV[1], 'senders')
return -1
