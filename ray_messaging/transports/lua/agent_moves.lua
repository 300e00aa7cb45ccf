-- Moves of agents from one mailbox to another mailbox, or to none.

-- shared move_attempts ------------------------------------------------------------------------------------------------
-- A mailbox's reader numbers its attempts to move agents away from the mailbox.

-- Return nil if an attempt may be made, else the reason why it must not be made: 0 it was made before, 7 it was given up,
-- -1 a newer reader has the mailbox, -2 the server has lost the data of this reader.
local function check_attempt(key, epoch, mine, number)
  if epoch ~= mine then return epoch and tonumber(epoch) > tonumber(mine) and -1 or -2 end
  local known = redis.call('HMGET', key, 'released', 'departed')
  local last_epoch, last = (known[1] or ''):match('^(%d+) (%d+)$')
  if last_epoch ~= mine or tonumber(number) > tonumber(last) then return nil end
  return known[2] == mine .. ' ' .. number and 0 or 7
end

-- Make a mailbox refuse all messages while agents are leaving it.
local function keep_out(key)
  local most = redis.call('HGET', key, 'max_messages')
  if most ~= '0' then redis.call('HSET', key, 'held', most, 'max_messages', 0) end
end

-- Make a mailbox that refused messages accept them again.
local function let_in(key)
  local now = redis.call('HMGET', key, 'held', 'max_messages')
  if now[1] and now[2] == '0' then redis.call('HSET', key, 'max_messages', now[1]) end
  if now[1] then redis.call('HDEL', key, 'held') end
end

-- script move_agents --------------------------------------------------------------------------------------------------
-- Move agents from a mailbox to another one, or to none, in the directory; do all of it or nothing. Outside of steps, the
-- messages that wait for the agents move to the other mailbox, or become dead letters. In steps the messages stay in their
-- boxes, and the move takes effect in the first step that no group has opened. See transports/agent_moves.py.
--
-- KEYS[1] meta, [2] records, [3] changes: as in load_directory  [4] dead: see dead_letter_retention
-- KEYS[5] state  hash of the mailbox: see take_mailbox; held = its max_messages while it refuses messages because agents
--         are leaving it, released = epoch and number of the last attempt that was done or given up, departed = epoch and
--         number of the last attempt that was done
-- KEYS[6] steps, [7] step:<group> of the mailbox: see step_barrier
-- KEYS[8] state, [9] lease, [10] step:<group> of the mailbox to which they go; left out: there is none
-- ARGV[1] prefix of this experiment's keys  [2] directory version  [3] mailbox  [4] its record  [5] the other mailbox, or ""
-- ARGV[6] the other mailbox's record; in steps there are no further arguments
-- ARGV[7] the reader's epoch  [8] number of the attempt  [9] the last entry that was read  [10] entry and [11] row of the
--         cursor  [12] oldest entry to keep  [13] messages and [14] bytes handled: totals  [15] ranges that are
--         acknowledged behind the cursor, and [16] how many messages  [17] reason of dead letters  [18] bytes of dead
--         letters that are kept  [19] how many frames stay  [20...] rows and frame of each frame that stays, then of each
--         frame that goes
-- Returns {outcome, step}. The outcome is a number of MoveOutcome; -1: a newer reader has the mailbox; -2: the server has
-- lost the mailbox. In steps, the step is the one in which the move takes effect, or for outcome 8 the first step of the
-- other group; otherwise it is 0.
local prefix, name, target, in_steps = ARGV[1], ARGV[3], ARGV[5], not ARGV[7]
local state, verdict = reader(KEYS[5]), nil
if not in_steps then verdict = check_attempt(KEYS[5], state[1], ARGV[7], ARGV[8]) end
if verdict then return {verdict, 0} end
if (redis.call('HGET', KEYS[1], 'directory') or '0') ~= ARGV[2] then return {1, 0} end
if not in_steps and (state[10] or '0-0') ~= ARGV[9] then
  keep_out(KEYS[5])
  return {2, 0}
end

local stay_end = not in_steps and 19 + 2 * tonumber(ARGV[19])
local there = nil
if target ~= '' then
  there = counts_of(KEYS[8], KEYS[9], prefix, target)
  if not there then return {6, 0} end
end
if there and in_steps then
  local member = redis.call('HMGET', KEYS[10], 'since', 'until')
  if not member[1] or member[2] then return {6, 0} end
  if tonumber(member[1]) > redis.call('HGET', KEYS[6], 'latest') + 1 then return {8, tonumber(member[1])} end
elseif there then
  -- A mailbox that refuses messages because agents are leaving it still accepts a move: otherwise two groups that move
  -- agents to each other would wait for each other for ever.
  if there.max_rows == 0 and there.held then there.max_rows = there.held end
  for arg = stay_end + 1, #ARGV, 2 do
    local refused = refusal(there, tonumber(ARGV[arg]), #ARGV[arg + 1])
    if refused then return {refused, 0} end
  end
end

-- Write each unread message to the mailbox, or to the dead letters, to which it belongs after the move.
local function move_unread()
  local mine, here = ARGV[7] .. ' ' .. ARGV[8], nil
  redis.call('HSET', KEYS[5], 'released', mine, 'departed', mine)
  let_in(KEYS[5])
  move(KEYS[5], state, prefix .. 'mailbox:' .. name, ARGV[10], ARGV[11], ARGV[12], ARGV[13], ARGV[14], ARGV[15], ARGV[16])
  here = counts_of(KEYS[5], nil, prefix, name)
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
      added = added + add(KEYS[4], prefix, ARGV[18], {'mailbox', name, 'entry', ARGV[9], 'row', '0', 'reason', ARGV[17],
                                                      'born', born, 'exclusive', '1', 'acked', '', 'f', ARGV[arg + 1]})
    end
  end
  if letters > 0 then bound(KEYS[4], prefix, ARGV[18], letters, added) end
  store(KEYS[5], here, here.last)
  if there then store(KEYS[8], there, there.last) end
end

-- Keep the state that the group had before step `since`, because the group that gets the agents reads that state.
local function keep_state_of(since)
  local group = redis.call('HMGET', KEYS[7], 'since', 'parting')
  if not group[1] then return end
  local named, parting = string.format('%.0f', since), group[2] and group[2] .. ',' or ''
  if not (',' .. parting):find(',' .. named .. ',', 1, true) then redis.call('HSET', KEYS[7], 'parting', parting .. named) end
  redis.call('HSETNX', KEYS[7] .. ':left', named, '')
end

-- In mode WaitFor.SENDERS the agents take their senders along. So the group that gets the agents from now on also hears
-- the group that they leave, and all groups that this group hears. Groups that hear the old group also hear the new group.
local function union(old, more)
  if old == '*' or more == '*' then return '*' end
  local found, all = {}, {}
  for each in (old .. ',' .. more):gmatch('[^,]+') do
    if not found[each] then all[#all + 1] = each end
    found[each] = true
  end
  table.sort(all)
  return table.concat(all, ',')
end

local function hear_both(since)
  local hears, mine = KEYS[6] .. ':hears', heard(prefix, name, since) or '*'
  if mine ~= '*' then mine = union(mine, name) end
  local all = redis.call('HGETALL', hears)
  for i = 1, #all, 2 do
    local kept, current, later = {}, nil, {}
    local function wider(names)
      if all[i] == target then return union(names, mine) end
      return (',' .. names .. ','):find(',' .. name .. ',', 1, true) and union(names, target) or names
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

-- From here on nothing can fail.
if not in_steps then move_unread() end
local version, since = redis.call('HINCRBY', KEYS[1], 'directory', 1), 0
for arg = 3, there and 5 or 3, 2 do
  redis.call('HSET', KEYS[2], ARGV[arg], ARGV[arg + 1])
  redis.call('HSET', KEYS[3], ARGV[arg], version)
end
if in_steps then
  since = date_change(KEYS[1], KEYS[6], version)
  keep_state_of(since)
  if there then hear_both(since) end
  tell(prefix, 'hosts')
end
return {0, since}

-- script give_up_move -------------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Refuse an attempt of move_agents, and all earlier attempts, from now on. Allowed when memory is full.
--
-- KEYS[1] state  hash of the mailbox: see move_agents
-- ARGV[1] the reader's epoch  [2] number of the attempt
-- Returns 0 if the attempt was made already, 7 if it is given up now; -1 and -2 as in move_agents
local verdict = check_attempt(KEYS[1], redis.call('HGET', KEYS[1], 'epoch'), ARGV[1], ARGV[2])
if verdict then return verdict end
redis.call('HSET', KEYS[1], 'released', ARGV[1] .. ' ' .. ARGV[2])
let_in(KEYS[1])
return 7
