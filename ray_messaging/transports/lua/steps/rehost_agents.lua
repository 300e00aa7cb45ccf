-- Move agents to another mailbox, or nowhere, from the first step on that nobody has opened. What waits for them stays in
-- the boxes where it lies: their new group reads it there. See transports/departures.py.
--
-- KEYS[1] meta, [2] records, [3] changes: as in load_directory.lua  [4] steps, [5] step:<group> of the mailbox: see
--         step_barrier.lua  [6] state, [7] lease, [8] step:<group> of the other mailbox; left out: there is none
-- ARGV[1] prefix of this experiment's keys  [2] directory version  [3] mailbox  [4] its record  [5] the other mailbox, or ""
-- ARGV[6] its record
-- Returns {a number of Released, the step from which it counts, or with 8 from which the other group does}
if (redis.call('HGET', KEYS[1], 'directory') or '0') ~= ARGV[2] then return {1, 0} end
local now = redis.call('HMGET', KEYS[4], 'latest', 'sealed')
local step = tonumber(now[1]) + 1
if ARGV[5] ~= '' then
  local there = redis.call('HMGET', KEYS[8], 'since', 'until')
  local leased = redis.call('HGET', KEYS[6], 'leased')
  if not leased or (leased == '1' and redis.call('EXISTS', KEYS[7]) == 0) then return {6, 0} end
  if not there[1] or there[2] then return {6, 0} end
  if tonumber(there[1]) > step then return {8, tonumber(there[1])} end
end

local version = redis.call('HINCRBY', KEYS[1], 'directory', 1)
local since = date_change(KEYS[1], KEYS[4], version)
for arg = 3, 5, 2 do
  if ARGV[arg] ~= '' then
    redis.call('HSET', KEYS[2], ARGV[arg], ARGV[arg + 1])
    redis.call('HSET', KEYS[3], ARGV[arg], version)
  end
end
local group = redis.call('HMGET', KEYS[5], 'since', 'parting')
if group[1] then
  local named, parting = string.format('%.0f', since), group[2] and group[2] .. ',' or ''
  if not (',' .. parting):find(',' .. named .. ',', 1, true) then redis.call('HSET', KEYS[5], 'parting', parting .. named) end
  redis.call('HSETNX', KEYS[5] .. ':left', named, '')
end

-- A group that waits for its senders alone: the other group hears from now on also this one and all that it hears. Groups
-- that hear this one hear the other one, too.
local function union(old, more)
  if old == '*' or more == '*' then return '*' end
  local found, all = {}, {}
  for name in (old .. ',' .. more):gmatch('[^,]+') do
    if not found[name] then all[#all + 1] = name end
    found[name] = true
  end
  table.sort(all)
  return table.concat(all, ',')
end
if ARGV[5] ~= '' then
  local hears = KEYS[4] .. ':hears'
  local mine = (heard(ARGV[1], ARGV[3], since) or '*')
  if mine ~= '*' then mine = union(mine, ARGV[3]) end
  local all = redis.call('HGETALL', hears)
  for i = 1, #all, 2 do
    local kept, current, later = {}, nil, {}
    local function wider(names)
      if all[i] == ARGV[5] then return union(names, mine) end
      return (',' .. names .. ','):find(',' .. ARGV[3] .. ',', 1, true) and union(names, ARGV[5]) or names
    end
    for from, names in all[i + 1]:gmatch('(%d+):([^;]*)') do
      if tonumber(from) <= since then current = names end
      if tonumber(from) < since then kept[#kept + 1] = from .. ':' .. names end
      if tonumber(from) > since then later[#later + 1] = from .. ':' .. wider(names) end
    end
    if current then kept[#kept + 1] = string.format('%.0f:%s', since, wider(current)) end
    for _, each in ipairs(later) do kept[#kept + 1] = each end
    redis.call('HSET', hears, all[i], table.concat(kept, ';'))
  end
end
tell(ARGV[1], 'hosts')
return {0, since}
