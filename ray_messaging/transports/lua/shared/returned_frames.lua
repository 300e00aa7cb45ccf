-- The beginning of requeue.lua: mailboxes that take messages of dead letters. mailbox_limit.lua and step_box.lua
-- come before it.

-- A mailbox with its counts and limits, or the next box of a stepped one; nil where it is gone.
local function taker_of(state, lease, prefix, name)
  local now = redis.call('HMGET', state, 'messages', 'bytes', 'max_messages', 'max_bytes', 'leased', 'born', 'logged',
                         'unlogged', 'unlogged_bytes', 'stepped')
  if not now[3] or (now[5] == '1' and redis.call('EXISTS', lease) == 0) then return nil end
  if now[10] then return next_box(prefix, name) end
  return {state = state, rows = tonumber(now[1]), bytes = tonumber(now[2]), max_rows = tonumber(now[3]),
          max_bytes = tonumber(now[4]), stream = prefix .. 'mailbox:' .. name .. ':' .. now[6], logged = now[7],
          unlogged = now[7] and tonumber(now[8] or 0) or 0, unlogged_bytes = now[7] and tonumber(now[9] or 0) or 0}
end

-- Count a frame; return why the mailbox does not take it, a number of Requeued, or nil.
local function refusal_of(box, rows, size)
  local fate
  if box.limits then
    fate = box_takes(box, box.limits, rows, size) and 0 or 5
  else
    box.rows, box.bytes = box.rows + rows, box.bytes + size
    if box.logged then box.unlogged, box.unlogged_bytes = box.unlogged + rows, box.unlogged_bytes + size end
    fate = limit_fate(size, box.max_rows, box.max_bytes, box.rows, box.bytes, box.unlogged, box.unlogged_bytes)
  end
  return ({[5] = 4, [2] = 3, [6] = 5})[fate]
end

-- Write a frame that was counted.
local function give(prefix, box, rows, frame)
  if box.limits then put_from_outside(prefix, box, tonumber(rows), frame)
  else box.last = redis.call('XADD', box.stream, '*', 'f', frame) end
end

-- Keep the counts of a mailbox.
local function keep_counts(box)
  if box.last then redis.call('HSET', box.state, 'messages', box.rows, 'bytes', box.bytes, 'last', box.last) end
  if box.logged then redis.call('HSET', box.state, 'unlogged', box.unlogged, 'unlogged_bytes', box.unlogged_bytes) end
end
