-- Let agents leave a mailbox: what waits for them goes into another mailbox, or among the dead letters, and the directory
-- says so from then on. All of it or nothing. See transports/departures.py.
--
-- KEYS[1] meta, [2] records, [3] changes: as in load_directory.lua  [4] dead: see dead_letter_retention.lua
-- KEYS[5] state  hash of the mailbox: see take_mailbox.lua; held = its max_messages while it takes nothing, as agents are
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
  local most = redis.call('HGET', KEYS[5], 'max_messages')
  if most ~= '0' then redis.call('HSET', KEYS[5], 'held', most, 'max_messages', 0) end
  return 2
end

local stay_end = 19 + 2 * tonumber(ARGV[19])
local there = nil
if ARGV[8] ~= '' then
  local now = redis.call('HMGET', KEYS[6], 'messages', 'bytes', 'max_messages', 'max_bytes', 'leased', 'born', 'logged',
                         'unlogged', 'unlogged_bytes', 'last')
  if not now[3] or (now[5] == '1' and redis.call('EXISTS', KEYS[7]) == 0) then return 6 end
  there = {state = KEYS[6], rows = tonumber(now[1]), bytes = tonumber(now[2]), logged = now[7], last = now[10],
           unlogged = tonumber(now[8] or 0), unlogged_bytes = tonumber(now[9] or 0),
           stream = ARGV[5] .. 'mailbox:' .. ARGV[8] .. ':' .. now[6]}
end
local function count(box, rows, size)
  box.rows, box.bytes = box.rows + rows, box.bytes + size
  if box.logged then box.unlogged, box.unlogged_bytes = box.unlogged + rows, box.unlogged_bytes + size end
end
if there then
  local limits = redis.call('HMGET', KEYS[6], 'max_messages', 'max_bytes')
  for arg = stay_end + 1, #ARGV, 2 do
    count(there, tonumber(ARGV[arg]), #ARGV[arg + 1])
    local fate = limit_fate(#ARGV[arg + 1], tonumber(limits[1]), tonumber(limits[2]), there.rows, there.bytes,
                            there.logged and there.unlogged or 0, there.logged and there.unlogged_bytes or 0)
    if fate ~= 0 then return ({[5] = 4, [2] = 3, [6] = 5})[fate] end
  end
end

-- Nothing can fail any more.
local mine = ARGV[1] .. ' ' .. ARGV[2]
redis.call('HSET', KEYS[5], 'released', mine, 'departed', mine)
let_in(KEYS[5])
move(KEYS[5], state, ARGV[5] .. 'mailbox:' .. ARGV[6], ARGV[10], ARGV[11], ARGV[12], ARGV[13], ARGV[14], ARGV[15], ARGV[16])
local now = redis.call('HMGET', KEYS[5], 'messages', 'bytes', 'logged', 'unlogged', 'unlogged_bytes', 'last')
local here = {state = KEYS[5], rows = tonumber(now[1]), bytes = tonumber(now[2]), logged = now[3], last = now[6],
              unlogged = tonumber(now[4] or 0), unlogged_bytes = tonumber(now[5] or 0),
              stream = ARGV[5] .. 'mailbox:' .. ARGV[6] .. ':' .. state[2]}
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
for _, box in ipairs({here, there}) do
  redis.call('HSET', box.state, 'messages', box.rows, 'bytes', box.bytes)
  if box.last then redis.call('HSET', box.state, 'last', box.last) end
  if box.logged then redis.call('HSET', box.state, 'unlogged', box.unlogged, 'unlogged_bytes', box.unlogged_bytes) end
end
local version = redis.call('HINCRBY', KEYS[1], 'directory', 1)
redis.call('HSET', KEYS[2], ARGV[6], ARGV[7])
redis.call('HSET', KEYS[3], ARGV[6], version)
if there then
  redis.call('HSET', KEYS[2], ARGV[8], ARGV[9])
  redis.call('HSET', KEYS[3], ARGV[8], version)
end
return 0
