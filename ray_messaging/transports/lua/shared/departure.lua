-- Shared by the scripts of departures: attempts to let agents leave a mailbox, by their numbers, and the mailbox to which
-- they go. mailbox_limit.lua comes before it.

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

-- A mailbox with its counts and limits; nil where it is gone. One that takes nothing as agents are leaving it takes those
-- that come: else two groups with agents for each other would wait for each other.
local function counts_of(state, prefix, name)
  local now = redis.call('HMGET', state, 'messages', 'bytes', 'max_messages', 'max_bytes', 'held', 'born', 'logged',
                         'unlogged', 'unlogged_bytes', 'last')
  return now[3] and {state = state, rows = tonumber(now[1]), bytes = tonumber(now[2]), logged = now[7], last = now[10],
                     max_rows = tonumber(now[3] == '0' and now[5] or now[3]), max_bytes = tonumber(now[4]),
                     unlogged = tonumber(now[8] or 0), unlogged_bytes = tonumber(now[9] or 0),
                     stream = prefix .. 'mailbox:' .. name .. ':' .. now[6]}
end

-- The mailbox to which agents go; nil where it is gone.
local function target_of(state, lease, prefix, name)
  if redis.call('HGET', state, 'leased') == '1' and redis.call('EXISTS', lease) == 0 then return nil end
  return counts_of(state, prefix, name)
end

local function count(box, rows, size)
  box.rows, box.bytes = box.rows + rows, box.bytes + size
  if box.logged then box.unlogged, box.unlogged_bytes = box.unlogged + rows, box.unlogged_bytes + size end
end

-- Count a frame; return why the mailbox does not take it, a number of Released, or nil.
local function refusal(box, rows, size)
  count(box, rows, size)
  local fate = limit_fate(size, box.max_rows, box.max_bytes, box.rows, box.bytes, box.logged and box.unlogged or 0,
                          box.logged and box.unlogged_bytes or 0)
  return ({[5] = 4, [2] = 3, [6] = 5})[fate]
end

-- Keep the counts of a mailbox.
local function store(box)
  redis.call('HSET', box.state, 'messages', box.rows, 'bytes', box.bytes)
  if box.last then redis.call('HSET', box.state, 'last', box.last) end
  if box.logged then redis.call('HSET', box.state, 'unlogged', box.unlogged, 'unlogged_bytes', box.unlogged_bytes) end
end
