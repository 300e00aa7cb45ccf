-- Shared by send_to_boxes.lua and commit_step.lua: write frames of an open step into boxes, which step_box.lua describes.
-- Keys and ARGV[1] to [6] are those of send_to_boxes.lua; the writes begin at an argument. With `whole` all of it is written,
-- or nothing. A frame may be a stand-in for one that is on another shard: \1body:<shard>:<bytes of the frame>:<its name>.
-- Returns what send_to_boxes.lua does.
local function write_to_boxes(keys, first, whole)
  local prefix, step = ARGV[1], tonumber(ARGV[4])
  local group = redis.call('HMGET', keys[3], 'attempt', 'open', 'ahead')
  local limits = redis.call('HMGET', keys[2], 'box_rows', 'box_bytes', 'horizon', 'opened', 'answering')
  if group[1] ~= ARGV[3] or not is_open(step, group[2], group[3], limits[4]) then return {9} end

  local writes, names, last = {}, {}, {}
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
  for low = 1, #names, 1000 do
    local found = redis.call('HMGET', keys[4], unpack(names, low, math.min(low + 999, #names)))
    for i, number in ipairs(found) do last[low + i - 1] = tonumber(number or 0) end
  end

  local reply = {0}
  local meta = redis.call('HMGET', keys[1], 'interceptor', 'standing')
  if ARGV[6] == '-2' then
    if meta[1] then reply[1] = 4 end
  elseif ARGV[6] ~= '-1' and meta[1] ~= ARGV[6] and meta[2] ~= ARGV[6] then
    reply[1] = 2
  end

  -- First it is decided what may be written, with all that earlier writes of this call will have taken.

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

  -- Whether a group reads a step that is sent to in this one. Senders of steps before it joined need not know it.
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
    -- Pieces of a thousand: Lua gives a call no more arguments than 8,000.
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

  if whole then
    for i = 1, #reply do
      if reply[i] ~= 0 and (i == 1 or reply[i] ~= 1) then return reply end
    end
  end

  -- Then it is written.

  for i, s in ipairs(writes) do
    if reply[i + 1] == 0 then
      for _, part in ipairs(s.parts) do
        part[1].written = true
        redis.call('XADD', part[1].stream, '*', 't',
                   string.format('%s:%s:%d:0:%s', ARGV[4], ARGV[3], part[2], ARGV[2]), unpack(part, 4))
      end
    end
  end
  local fields = {}
  for name, seq in pairs(planned) do
    fields[#fields + 1], fields[#fields + 2] = 's:' .. ARGV[5] .. '@' .. name, seq
  end
  for _, box in ipairs(order) do
    if box.written then
      keep_box(prefix, box)
      if box.name:sub(1, 1) == '+' and box.step > tonumber(limits[5] or -1) then
        limits[5] = box.step
        redis.call('HSET', keys[2], 'answering', box.step)
      end
      local rows, bytes = (redis.call('HGET', keys[4], 'r:' .. box.name) or '0:0'):match('^(%d+):(%d+)$')
      fields[#fields + 1] = 'r:' .. box.name
      fields[#fields + 1] = string.format('%.0f:%.0f', rows + box.rows - box.had_rows, bytes + box.bytes - box.had_bytes)
    end
  end
  for low = 1, #fields, 1000 do redis.call('HSET', keys[4], unpack(fields, low, math.min(low + 999, #fields))) end
  return reply
end
