-- Boxes. A box holds the messages that one mailbox reads in one step.

-- shared step_box -----------------------------------------------------------------------------------------------------
-- Boxes of steps, and their keys:
--
-- box:<mailbox>@<step>    stream: f = frame, t = <step sent>:<attempt>:<rows>:<rows from outside before it>:<group>, n = note;
--                         fields c and d in turn: a channel, and the data to publish to it
-- box-cover:<mailbox>@<step>  hash: rows and bytes = of all frames except frames of attempts that failed;
--                         c:<step sent>:<group> = <attempt>:<rows>, for each attempt whose frames are valid; for
--                         frames from outside of the steps the group is "" and the attempt 0
-- boxes@<step>      set: names of the boxes for a step
local function box_at(prefix, mailbox, step)
  local name = string.format('%s@%.0f', mailbox, step)
  local held = redis.call('HMGET', prefix .. 'box-cover:' .. name, 'rows', 'bytes')
  return {name = name, step = step, new = not held[1], rows = tonumber(held[1] or 0), bytes = tonumber(held[2] or 0),
          cover = prefix .. 'box-cover:' .. name, stream = prefix .. 'box:' .. name}
end

-- Return whether a frame fits in a box; if it fits, add it to the box's rows and bytes. Nobody reads a box before its step.
-- So a full box stays full until then, unless an attempt fails whose frames are in the box.
local function box_takes(box, limits, rows, size)
  if box.rows + rows > tonumber(limits[1]) or box.bytes + size > tonumber(limits[2]) then return false end
  box.rows, box.bytes = box.rows + rows, box.bytes + size
  return true
end

local function list_box(prefix, box)
  if box.new then redis.call('SADD', string.format('%sboxes@%.0f', prefix, box.step), box.name) end
  box.new = false
end

local function keep_box(prefix, box, ...)
  redis.call('HSET', box.cover, 'rows', box.rows, 'bytes', box.bytes, ...)
  list_box(prefix, box)
end

-- Return the box for messages that come from outside of the steps to a group's mailbox: the box of the next step that was
-- not opened yet. Return nil if the group has left the steps.
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

-- Write a frame from outside of the steps. It is valid at once, unlike a frame of a group, which is valid from the close
-- of the group's step. Return how many rows from outside of the steps came before it in the same
-- step.
local function put_from_outside(prefix, box, rows, frame)
  local sent = string.format('%.0f', box.step - 1)
  local first = redis.call('HINCRBY', prefix .. 'steps:' .. sent, 'start:outside', rows) - rows
  redis.call('XADD', box.stream, '*', 'f', frame, 't', string.format('%s:0:%d:%.0f:', sent, rows, first))
  local field = 'c:' .. sent .. ':'
  local before = tonumber((redis.call('HGET', box.cover, field) or '0:0'):match(':(%d+)'))
  keep_box(prefix, box, field, string.format('0:%.0f', before + rows))
  return first
end

-- shared write_to_boxes -----------------------------------------------------------------------------------------------
-- Write frames of an open step into boxes, which step_box describes.
-- Keys and ARGV[1] to [6] are those of send_to_boxes; the writes begin at argument `first`. If the step is closed in the
-- same call, `closing` is the argument of cover_step: then all frames are written, or nothing, and closing.sent and
-- closing.sizes get the fields that cover_step will write. A frame may be a stand-in for a frame on another shard:
-- \1body:<shard>:<bytes of the frame>:<its name>.
-- Returns what send_to_boxes returns.
local function write_to_boxes(keys, first, closing)
  local prefix, step = ARGV[1], tonumber(ARGV[4])
  local now, sent = closing and closing.now, {}  -- sent: fields in order, and the value of each
  local group = now and {now[1], now[3], now[5]} or redis.call('HMGET', keys[3], 'attempt', 'start:open', 'start:ahead')
  local limits = redis.call('HMGET', keys[2], 'box_rows', 'box_bytes', 'horizon', 'opened', 'start:answering')
  if group[1] ~= ARGV[3] or not is_open(step, group[2], group[3], limits[4]) then return {9} end
  -- The supervisor, which applies rules, has no limits. It sends after all groups have closed the step, so nobody could
  -- send less if its frames were refused, and the step would never end.
  if ARGV[2] == ':rules' then limits[1], limits[2] = math.huge, math.huge end

  local function put(field, value)
    if not sent[field] then sent[#sent + 1] = field end
    sent[field] = value
  end

  local writes, names, last = {}, {}, nil
  local arg = first
  while arg <= #ARGV do
    local s = {name = ARGV[arg], seq = tonumber(ARGV[arg + 1]), rows = tonumber(ARGV[arg + 2]), at = arg,
               noted = tonumber(ARGV[arg + 4]), published = tonumber(ARGV[arg + 5])}
    arg = arg + 6 + 2 * s.published
    if s.noted >= 0 then
      s.note = arg
      arg = arg + 2
    end
    writes[#writes + 1], names[#names + 1] = s, 's:' .. ARGV[5] .. '@' .. s.name
  end
  if closing then
    local found = redis.call('HGETALL', keys[4])  -- usually empty
    for i = 1, #found, 2 do put(found[i], found[i + 1]) end
    last = {}
    for i, name in ipairs(names) do last[i] = tonumber(sent[name] or 0) end
  else
    last = numbers_of(keys[4], names)
  end

  local meta = redis.call('HMGET', keys[1], 'start:interceptor', 'start:standing')
  local reply = {verdict_status(ARGV[6], meta[1], meta[2])}

  -- First decide which frames may be written, counting the room that earlier frames of this call take.

  local boxes, order = {}, {}
  local function box_of(mailbox, at)
    local name = mailbox .. '@' .. at
    local box = boxes[name]
    if not box then
      box = box_at(prefix, mailbox, tonumber(at))
      box.had_rows, box.had_bytes = box.rows, box.bytes
      boxes[name], order[#order + 1] = box, box
    end
    return box
  end

  -- Return whether a group takes part in step `at`, and also in the step after this one. A group that joins
  -- later gets nothing from this step, because its senders may not know the group yet.
  local function counts(mailbox, at)
    local reader = redis.call('HMGET', prefix .. 'step:' .. mailbox, 'since', 'until')
    return reader[1] and step + 1 >= tonumber(reader[1]) and (not reader[2] or at < tonumber(reader[2]))
  end

  local function fits(s)
    local size = #ARGV[s.at + 3]
    if ARGV[s.at + 3]:byte() == 1 then size = tonumber(ARGV[s.at + 3]:match('^\1body:%d+:(%d+):') or size) end
    s.parts = {}
    if s.name ~= '' and s.name ~= ':log' then
      local mailbox, at = s.name:match('^([^:@]+)@(%d+)$')
      if not at then mailbox, at = s.name:match('^(:places)@(%d+)$') end
      if not at or tonumber(at) <= step or tonumber(at) > step + tonumber(limits[3]) then return 3 end
      if not mailbox:find('^[+:]') and not counts(mailbox, tonumber(at)) then return 3 end
      local box = box_of(mailbox, at)
      if not box_takes(box, limits, s.rows, size) then return 5 end
      s.parts[1] = {box, s.rows, size, 'f', ARGV[s.at + 3]}
    end
    -- Write in pieces of 1,000 publications, because Lua allows at most 8,000 arguments in a call.
    for low = 0, s.published - 1, 1000 do
      local count, pairs, nbytes = math.min(1000, s.published - low), {'f', ''}, 0
      for at = s.at + 6 + 2 * low, s.at + 5 + 2 * (low + count), 2 do
        nbytes = nbytes + #ARGV[at] + #ARGV[at + 1]
        for _, value in ipairs({'c', ARGV[at], 'd', ARGV[at + 1]}) do pairs[#pairs + 1] = value end
      end
      local box = box_of(':out', string.format('%.0f', step + 1))
      if not box_takes(box, limits, count, nbytes) then return 5 end
      s.parts[#s.parts + 1] = {box, count, nbytes, unpack(pairs)}
    end
    if s.note then
      local box, nbytes = box_of(':log', string.format('%.0f', step + 1)), #ARGV[s.note] + #ARGV[s.note + 1]
      if not box_takes(box, limits, s.noted, nbytes) then return 5 end
      s.parts[#s.parts + 1] = {box, s.noted, nbytes, 'f', ARGV[s.note], 'n', ARGV[s.note + 1]}
    end
    return 0
  end

  local planned, refused = {}, {}
  for i, s in ipairs(writes) do
    local fate = refused[s.name]
    if s.seq <= last[i] then fate = 1
    elseif reply[1] ~= 0 then fate = 2
    elseif not fate and s.seq ~= (planned[s.name] or last[i]) + 1 then fate = 4 end
    if not fate then
      fate = fits(s)
      if fate == 0 then
        planned[s.name] = s.seq
      else
        for _, part in ipairs(s.parts) do
          part[1].rows, part[1].bytes = part[1].rows - part[2], part[1].bytes - part[3]
        end
      end
    end
    if fate > 1 then refused[s.name] = fate end
    reply[i + 1] = fate
  end

  if closing then
    closing.sizes = {}
    for i = 1, #reply do
      if reply[i] ~= 0 and (i == 1 or reply[i] ~= 1) then return reply end
    end
  end

  -- Then write these frames.

  for i, s in ipairs(writes) do
    if reply[i + 1] == 0 then
      for _, part in ipairs(s.parts) do
        part[1].written = true
        redis.call('XADD', part[1].stream, '*', 't',
                   string.format('%s:%s:%d:0:%s', ARGV[4], ARGV[3], part[2], ARGV[2]), unpack(part, 4))
      end
    end
  end
  for name, seq in pairs(planned) do put('s:' .. ARGV[5] .. '@' .. name, seq) end
  for _, box in ipairs(order) do
    if box.written then
      if closing then
        list_box(prefix, box)
        closing.sizes[box.name] = {'rows', box.rows, 'bytes', box.bytes}
      else
        keep_box(prefix, box)
      end
      if box.name:sub(1, 1) == '+' and box.step > tonumber(limits[5] or -1) then
        limits[5] = box.step
        redis.call('HSET', keys[2], 'start:answering', box.step)
      end
      local field = 'r:' .. box.name
      local had = closing and sent[field] or not closing and redis.call('HGET', keys[4], field)
      local rows, bytes = (had or '0:0'):match('^(%d+):(%d+)$')
      put(field, string.format('%.0f:%.0f', rows + box.rows - box.had_rows, bytes + box.bytes - box.had_bytes))
    end
  end
  local fields = {}
  for i, field in ipairs(sent) do fields[2 * i - 1], fields[2 * i] = field, sent[field] end
  if closing then closing.sent = fields else keep_fields(keys[4], fields) end
  return reply
end

-- script send_to_boxes ------------------------------------------------------------------------------------------------
-- Write frames of an open step into boxes, which step_box describes.
--
-- KEYS[1] meta   hash: start:interceptor, start:standing: see send
-- KEYS[2] steps  hash, KEYS[3] step:<group>, KEYS[4] start:sent:<group>: see step_barrier
-- ARGV[1] prefix of this experiment's keys  [2] group  [3] the driver's attempt  [4] step  [5] sender
-- ARGV[6] the interceptor's epoch, or another value as in send
-- ARGV[...] per write as in send, with a box in place of a mailbox. The box has a + before it if its mailbox is outside of
--         the steps (see deliver_answers in step_barrier). Publications go to box :out@<the next step>, notes to box
--         :log@<the next step>
-- Returns {status, fates of the writes...}: see SendStatus and FrameFate
return write_to_boxes(KEYS, 7, nil)

-- script list_boxes ---------------------------------------------------------------------------------------------------
#!lua flags=no-writes
-- Return the boxes for some steps, each with its covers.
--
-- KEYS[1] steps: see step_barrier
-- ARGV[1] prefix of this experiment's keys  [2] [3] the first and the last step of the boxes
-- Returns for each box {its name, field, value of its covers...}: see step_box
local reply = {}
for step = tonumber(ARGV[2]), tonumber(ARGV[3]) do
  for _, name in ipairs(redis.call('SMEMBERS', string.format('%sboxes@%.0f', ARGV[1], step))) do
    local found, box = redis.call('HGETALL', ARGV[1] .. 'box-cover:' .. name), {name}
    for i = 1, #found, 2 do
      if found[i]:sub(1, 2) == 'c:' then box[#box + 1], box[#box + 2] = found[i], found[i + 1] end
    end
    reply[#reply + 1] = box
  end
end
return reply

-- script hold_boxes ---------------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Keep boxes of sealed steps until a hold, such as the event log, has handled them. Allowed when memory is full, because
-- this frees memory when a hold moves on.
--
-- KEYS[1] steps, KEYS[2] start:holds: see step_barrier
-- ARGV[1] prefix of this experiment's keys  [2] name of the hold  [3] last step that it has handled; "": it ends
-- Returns 1; 0: the experiment has no steps
if redis.call('HEXISTS', KEYS[1], 'settings') == 0 then return 0 end
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[2], ARGV[2])
else
  local before = redis.call('HGET', KEYS[2], ARGV[2])
  if not before or tonumber(before) < tonumber(ARGV[3]) then redis.call('HSET', KEYS[2], ARGV[2], ARGV[3]) end
end
drop_boxes(ARGV[1])
local steps = redis.call('HMGET', KEYS[1], 'asked', 'opened')
release(ARGV[1])
-- If no group has asked for a further step, nobody waits for this news.
if tonumber(steps[1] or -1) > tonumber(steps[2] or -1) then tell(ARGV[1], 'hold') end
return 1

-- script drop_bodies --------------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Delete the bodies of large frames whose boxes were dropped. Allowed when memory is full, because this frees memory.
--
-- KEYS[1] bodies  set: the steps of the boxes; bodies:<step> is a hash: name of a frame -> its bytes
-- ARGV[1] last step that is dropped
-- Returns how many steps had bodies
local gone = 0
for _, step in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  if tonumber(step) <= tonumber(ARGV[1]) then
    redis.call('UNLINK', KEYS[1] .. ':' .. step)
    redis.call('SREM', KEYS[1], step)
    gone = gone + 1
  end
end
return gone
