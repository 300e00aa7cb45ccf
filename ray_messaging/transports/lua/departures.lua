-- Agents leave a mailbox.

-- shared departure ----------------------------------------------------------------------------------------------------
-- Attempts to let agents leave a mailbox, by their numbers.

-- What an attempt gets that is not to be made: 0 it is done, 7 it was given up, -1 it is an older reader's, -2 the server
-- has lost this one; nil where it is to be made.
local function check_attempt(key, epoch, mine, number)
  if epoch ~= mine then return epoch and tonumber(epoch) > tonumber(mine) and -1 or -2 end
  local known = redis.call('HMGET', key, 'released', 'departed')
  local last_epoch, last = (known[1] or ''):match('^(%d+) (%d+)$')
  if last_epoch ~= mine or tonumber(number) > tonumber(last) then return nil end
  return known[2] == mine .. ' ' .. number and 0 or 7
end

-- Let a mailbox take nothing, as agents are leaving it.
local function shut(key)
  local most = redis.call('HGET', key, 'max_messages')
  if most ~= '0' then redis.call('HSET', key, 'held', most, 'max_messages', 0) end
end

-- Let a mailbox take messages again that took none.
local function let_in(key)
  local now = redis.call('HMGET', key, 'held', 'max_messages')
  if now[1] and now[2] == '0' then redis.call('HSET', key, 'max_messages', now[1]) end
  if now[1] then redis.call('HDEL', key, 'held') end
end

-- script release_agents -----------------------------------------------------------------------------------------------
-- Let agents leave a mailbox: what waits for them goes into another mailbox, or among the dead letters, and the directory
-- says so from then on. All of it or nothing. See transports/departures.py.
--
-- KEYS[1] meta, [2] records, [3] changes: as in load_directory  [4] dead: see dead_letter_retention
-- KEYS[5] state  hash of the mailbox: see take_mailbox; held = its max_messages while it takes nothing, as agents are
--         leaving it, released = epoch and number of the last attempt that was done or given up, departed = of the last
--         one that was done
-- KEYS[6] state and [7] lease of the mailbox to which they go; left out: there is none
-- ARGV[1] the reader's epoch  [2] number of the attempt  [3] directory version  [4] the last entry that was read
-- ARGV[5] prefix of this experiment's keys  [6] mailbox  [7] its record  [8] the other mailbox, or ""  [9] its record
-- ARGV[10] entry  [11] row  [12] oldest entry to keep  [13] messages and [14] bytes handled: totals  [15] what is
--         acknowledged behind the cursor, and [16] how many messages  [17] why they are dead letters  [18] bytes of dead
--         letters that are kept  [19] how many frames stay
-- ARGV[20...] rows, frame of each one that stays, then of each one that goes
-- Returns a number of Released; -1 where a newer reader holds the mailbox, -2 where the server has lost it
local state = reader(KEYS[5])
local verdict = check_attempt(KEYS[5], state[1], ARGV[1], ARGV[2])
if verdict then return verdict end
if (redis.call('HGET', KEYS[1], 'directory') or '0') ~= ARGV[3] then return 1 end
if (state[10] or '0-0') ~= ARGV[4] then
  shut(KEYS[5])
  return 2
end

local stay_end = 19 + 2 * tonumber(ARGV[19])
local there = nil
if ARGV[8] ~= '' then
  there = counts_of(KEYS[6], KEYS[7], ARGV[5], ARGV[8])
  if not there then return 6 end
  -- One that takes nothing as agents are leaving it takes those that come: else two groups with agents for each other would
  -- wait for each other.
  if there.max_rows == 0 and there.held then there.max_rows = there.held end
  for arg = stay_end + 1, #ARGV, 2 do
    local refused = refusal(there, tonumber(ARGV[arg]), #ARGV[arg + 1])
    if refused then return refused end
  end
end

-- Nothing can fail any more.
local mine = ARGV[1] .. ' ' .. ARGV[2]
redis.call('HSET', KEYS[5], 'released', mine, 'departed', mine)
let_in(KEYS[5])
move(KEYS[5], state, ARGV[5] .. 'mailbox:' .. ARGV[6], ARGV[10], ARGV[11], ARGV[12], ARGV[13], ARGV[14], ARGV[15], ARGV[16])
local here = counts_of(KEYS[5], nil, ARGV[5], ARGV[6])
for arg = 20, stay_end, 2 do
  count(here, tonumber(ARGV[arg]), #ARGV[arg + 1])
  here.last = redis.call('XADD', here.stream, '*', 'f', ARGV[arg + 1])
end
local added, letters, born = 0, 0, redis.call('HGET', KEYS[1], 'born') or state[2]
for arg = stay_end + 1, #ARGV, 2 do
  if there then
    there.last = redis.call('XADD', there.stream, '*', 'f', ARGV[arg + 1])
  else
    letters = letters + 1
    added = added + add(KEYS[4], ARGV[5], ARGV[18], {'mailbox', ARGV[6], 'entry', ARGV[4], 'row', '0', 'reason', ARGV[17],
                                                     'born', born, 'exclusive', '1', 'acked', '', 'f', ARGV[arg + 1]})
  end
end
if letters > 0 then bound(KEYS[4], ARGV[5], ARGV[18], letters, added) end
store(KEYS[5], here, here.last)
if there then store(KEYS[6], there, there.last) end
local version = redis.call('HINCRBY', KEYS[1], 'directory', 1)
redis.call('HSET', KEYS[2], ARGV[6], ARGV[7])
redis.call('HSET', KEYS[3], ARGV[6], version)
if there then
  redis.call('HSET', KEYS[2], ARGV[8], ARGV[9])
  redis.call('HSET', KEYS[3], ARGV[8], version)
end
return 0

-- script give_up_release ----------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Refuse an attempt of release_agents, and those before it, from now on. Allowed when memory is full.
--
-- KEYS[1] state  hash of the mailbox: see release_agents
-- ARGV[1] the reader's epoch  [2] number of the attempt
-- Returns 0 where it is done, else 7; -1 and -2 as release_agents
local verdict = check_attempt(KEYS[1], redis.call('HGET', KEYS[1], 'epoch'), ARGV[1], ARGV[2])
if verdict then return verdict end
redis.call('HSET', KEYS[1], 'released', ARGV[1] .. ' ' .. ARGV[2])
let_in(KEYS[1])
return 7

-- script rehost_agents ------------------------------------------------------------------------------------------------
-- Move agents to another mailbox, or nowhere, from the first step on that nobody has opened. What waits for them stays in
-- the boxes where it lies: their new group reads it there. See transports/departures.py.
--
-- KEYS[1] meta, [2] records, [3] changes: as in load_directory  [4] steps, [5] step:<group> of the mailbox: see
--         step_barrier  [6] state, [7] lease, [8] step:<group> of the other mailbox; left out: there is none
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
