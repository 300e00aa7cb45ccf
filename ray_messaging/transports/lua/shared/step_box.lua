-- Shared by send.lua, requeue.lua and send_to_boxes.lua: boxes, each of which holds what one mailbox reads in one step.
--
-- box:<mailbox>@<step>    stream: f = frame, t = <step sent>:<attempt>:<rows>:<rows from outside before it>:<group>, n = note;
--                         c and d, by turns: channels and data to publish
-- cover:<mailbox>@<step>  hash: rows and bytes = of all frames but those of dead attempts, c:<step sent>:<group> =
--                         <attempt>:<rows> that count; the group is "" for what comes from outside, its attempt 0
-- steps:<step>:boxes      set: names of the boxes for a step
local function box_at(prefix, mailbox, step)
  local name = string.format('%s@%.0f', mailbox, step)
  local held = redis.call('HMGET', prefix .. 'cover:' .. name, 'rows', 'bytes')
  return {name = name, step = step, new = not held[1], rows = tonumber(held[1] or 0), bytes = tonumber(held[2] or 0),
          cover = prefix .. 'cover:' .. name, stream = prefix .. 'box:' .. name}
end

-- Whether a frame fits; if so it is counted. Nothing empties a box before the end of its step: a full one takes no frame.
local function box_takes(box, limits, rows, size)
  if box.rows + rows > tonumber(limits[1]) or box.bytes + size > tonumber(limits[2]) then return false end
  box.rows, box.bytes = box.rows + rows, box.bytes + size
  return true
end

local function keep_box(prefix, box, ...)
  redis.call('HSET', box.cover, 'rows', box.rows, 'bytes', box.bytes, ...)
  if box.new then redis.call('SADD', string.format('%ssteps:%.0f:boxes', prefix, box.step), box.name) end
  box.new = false
end

-- The box of a stepped mailbox for what comes from outside: nobody has opened its step yet. Nil: its group has left.
local function next_box(prefix, mailbox)
  local now = redis.call('HMGET', prefix .. 'steps', 'latest', 'box_rows', 'box_bytes')
  local group = redis.call('HMGET', prefix .. 'step:' .. mailbox, 'since', 'until')
  if not now[1] or not group[1] then return nil end
  local step = math.max(tonumber(now[1]) + 1, tonumber(group[1]))
  if group[2] and step >= tonumber(group[2]) then return nil end
  local box = box_at(prefix, mailbox, step)
  box.limits = {now[2], now[3]}
  return box
end

-- Write a frame from outside: it counts at once.
local function put_from_outside(prefix, box, rows, frame)
  local sent = string.format('%.0f', box.step - 1)
  local first = redis.call('HINCRBY', prefix .. 'steps:' .. sent, 'outside', rows) - rows
  redis.call('XADD', box.stream, '*', 'f', frame, 't', string.format('%s:0:%d:%.0f:', sent, rows, first))
  local field = 'c:' .. sent .. ':'
  local before = tonumber((redis.call('HGET', box.cover, field) or '0:0'):match(':(%d+)'))
  keep_box(prefix, box, field, string.format('0:%.0f', before + rows))
end
