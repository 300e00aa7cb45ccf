-- Write a batch: frames into mailboxes, publications to bare channels, notes for the event log; and conclude a
-- transaction, which is written whole or not at all. Atomic: one experiment, one primary. send_one_frame.lua comes before it.
--
-- KEYS[1] meta     hash: directory = version, interceptor = epoch of the one whose verdicts count, standing = number
--                  under which its standing verdicts do, log = 1 while an event log is registered, wide: see take_mailbox.lua
-- KEYS[2] sender   hash: epoch, s:<mailbox> = last seq written, p:replies = takers of the last publications,
--                  transactions = how many were committed
-- KEYS[3...]       in a transaction first: state of the reader's mailbox (hash: epoch, blob = what the last transaction
--                  left, and what commit.lua names). Then per frame: mailbox state (hash: messages, bytes, max_messages,
--                  max_bytes, leased, born, last = id of the last entry, stepped = 1 where frames go to boxes: see
--                  step_box.lua; while a log is registered: logged, unlogged, unlogged_bytes), lease
-- ARGV[1] epoch  [2] directory version  [3] interceptor epoch, or number of standing verdicts, or -1 of a user's own, or
--         -2: nobody was asked, which counts only where there is no interceptor  [4] channel of the brackets round what
--         we publish
-- ARGV[5] prefix of this experiment's keys: mailbox:<name>:<born> is a mailbox's stream (f = frame), mailbox::log:0 the
--         log stream (f = frame, n = note, t = takers as JSON, s = the step that messages from outside got),
--         state::log a hash (unlogged, unlogged_bytes, max_messages, max_bytes, last)
-- ARGV[6] number of the transaction, from 1; 0: this is none, and the next eleven are left out
-- ARGV[7] the reader's epoch  [8] key of its stream, but for :<born>  [9] entry ("" leaves the cursor)  [10] row  [11]
--         oldest entry to keep  [12] messages and [13] bytes handled: totals  [14] what becomes of the blob: = it stays,
--         + it is [15], - it goes  [16] what is acknowledged behind the cursor (= it stays), and [17] how many messages
-- ARGV[...]        per write: mailbox ("" publishes only, ":log" only notes), seq, rows, frame, rows of its note or
--                  -1, number of publications, then channel, data of each, then frame and note where there is a note
-- Returns {status, fates of the writes..., -1, takers of the publications...}
local number = tonumber(ARGV[6])
local own, own_state, key, arg = nil, nil, 3, number > 0 and 18 or 7
-- At once, as most calls have one write.
local sender = redis.call('HMGET', KEYS[2], 'epoch', 's:' .. (ARGV[arg] or ''), 'transactions')
local epoch = sender[1]
if not epoch then return {7} end
if epoch ~= ARGV[1] then return {tonumber(epoch) > tonumber(ARGV[1]) and 3 or 8} end

local over = false  -- this transaction was committed by an earlier attempt
if number > 0 then
  own, key = KEYS[3], 4
  local committed = tonumber(sender[3] or 0)
  if number > committed + 1 then return {6} end
  over = number <= committed
  own_state = reader(own)
  if not over and own_state[1] ~= ARGV[7] then return {5} end
end

local writes, names = {}, {}
local fresh, noting = false, false
while arg <= #ARGV do
  local mailbox = ARGV[arg]
  local s = {mailbox = mailbox, seq = tonumber(ARGV[arg + 1]), at = arg, key = key, noted = tonumber(ARGV[arg + 4]),
             boxed = mailbox ~= '' and mailbox ~= ':log'}
  if s.boxed then key = key + 2 end
  arg = arg + 6 + 2 * tonumber(ARGV[arg + 5])
  if s.noted >= 0 then
    noting, s.note = true, arg
    arg = arg + 2
  end
  if #writes == 0 then
    s.last = tonumber(sender[2] or 0)
    fresh = s.seq > s.last
  else
    names[#names + 1] = 's:' .. mailbox
  end
  writes[#writes + 1] = s
end
for low = 1, #names, 1000 do
  local found = redis.call('HMGET', KEYS[2], unpack(names, low, math.min(low + 999, #names)))
  for i, last in ipairs(found) do
    local s = writes[low + i]
    s.last = tonumber(last or 0)
    if s.seq > s.last then fresh = true end
  end
end
if number > 0 then fresh = not over and #writes > 0 end

local reply, takers, meta = {0}, {}, {}
if fresh then
  meta = redis.call('HMGET', KEYS[1], 'directory', 'interceptor', 'log', 'standing', 'wide')
  if (meta[1] or '0') ~= ARGV[2] then reply[1] = 1
  elseif ARGV[3] == '-2' then if meta[2] then reply[1] = 4 end
  elseif ARGV[3] ~= '-1' and meta[2] ~= ARGV[3] and meta[4] ~= ARGV[3] then reply[1] = 2 end
end

-- Refused while memory is full, as all writes are, and before anything has happened: PUBLISH alone would go out.
if fresh and reply[1] == 0 then redis.call('HSET', KEYS[2], 'epoch', epoch) end

-- First it is decided what may be written, with all the room that earlier writes of this call will have taken.

-- What the log stream holds that the log does not have yet, and how much that may be.
local log
if noting and meta[3] and reply[1] == 0 then
  local held = redis.call('HMGET', ARGV[5] .. 'state::log', 'unlogged', 'unlogged_bytes', 'max_messages', 'max_bytes')
  log = {rows = tonumber(held[1] or 0), bytes = tonumber(held[2] or 0), max_rows = tonumber(held[3] or 0),
         max_bytes = tonumber(held[4] or 0)}
end
-- An empty log stream takes any note: one that is larger than all of it would else wait for ever.
local function crowded(s)
  if not log or not s.note or (log.rows <= 0 and log.bytes <= 0) then return false end
  return log.rows + s.noted > log.max_rows or log.bytes + #ARGV[s.note] + #ARGV[s.note + 1] > log.max_bytes
end

local boxes = {}
local function box_of(s)
  local box = boxes[s.mailbox]
  if box then return box end
  local now = redis.call('HMGET', KEYS[s.key], 'messages', 'bytes', 'max_messages', 'max_bytes', 'leased', 'born',
                         'logged', 'unlogged', 'unlogged_bytes', 'stepped')
  if not now[3] or (now[5] == '1' and redis.call('EXISTS', KEYS[s.key + 1]) == 0) then
    box = {gone = true}
  elseif now[10] then
    box = next_box(ARGV[5], s.mailbox) or {gone = true}
  else
    box = {messages = tonumber(now[1]), bytes = tonumber(now[2]), max_rows = tonumber(now[3]),
           max_bytes = tonumber(now[4]), stream = ARGV[5] .. 'mailbox:' .. s.mailbox .. ':' .. now[6], logged = now[7],
           unlogged = tonumber(now[8] or 0), unlogged_bytes = tonumber(now[9] or 0)}
    if KEYS[s.key] == own and ARGV[9] ~= '' then  -- what the transaction handled makes room for what it sends
      box.messages, box.bytes = behind(own_state, ARGV[9], ARGV[10], ARGV[12], ARGV[13])
    end
  end
  boxes[s.mailbox] = box
  return box
end

local function fits(s)
  local rows, size, box = tonumber(ARGV[s.at + 2]), #ARGV[s.at + 3], box_of(s)
  if box.gone then return 3 end
  if box.limits then return crowded(s) and 6 or box_takes(box, box.limits, rows, size) and 0 or 5 end
  local messages, bytes, unlogged, unlogged_bytes = box.messages + rows, box.bytes + size, 0, 0
  if box.logged then unlogged, unlogged_bytes = box.unlogged + rows, box.unlogged_bytes + size end
  local fate = limit_fate(size, box.max_rows, box.max_bytes, messages, bytes, unlogged, unlogged_bytes)
  if fate ~= 0 then return fate end
  if crowded(s) then return 6 end
  box.messages, box.bytes, box.unlogged, box.unlogged_bytes = messages, bytes, unlogged, unlogged_bytes
  return 0
end

local planned, refused, any_refused = {}, {}, false
for i, s in ipairs(writes) do
  local fate = 0
  if over or (s.seq <= s.last and number == 0) then
    fate = 1
    if s.mailbox == '' and #takers == 0 then takers = cjson.decode(redis.call('HGET', KEYS[2], 'p:replies') or '[]') end
  elseif reply[1] ~= 0 or refused[s.mailbox] then
    fate = 2
  elseif s.seq ~= (planned[s.mailbox] or s.last) + 1 then
    fate = 4
  elseif s.boxed then
    fate = fits(s)
  elseif crowded(s) then
    fate = 6
  end
  if fate == 0 then
    planned[s.mailbox] = s.seq
    if log and s.note then
      log.rows, log.bytes = log.rows + s.noted, log.bytes + #ARGV[s.note] + #ARGV[s.note + 1]
    end
  elseif fate > 1 then
    refused[s.mailbox], any_refused = true, true
  end
  reply[i + 1] = fate
end
if number > 0 and any_refused then
  for i = 1, #writes do if reply[i + 1] == 0 then reply[i + 1] = 7 end end
end

-- Then it is written: nothing can fail any more.

if number > 0 and not over and not any_refused then
  redis.call('HSET', KEYS[2], 'transactions', number)
  if ARGV[9] ~= '' then
    move(own, own_state, ARGV[8], ARGV[9], ARGV[10], ARGV[11], ARGV[12], ARGV[13], ARGV[16] ~= '=' and ARGV[16], ARGV[17])
  end
  if ARGV[14] == '+' then redis.call('HSET', own, 'blob', ARGV[15]) end
  if ARGV[14] == '-' then redis.call('HDEL', own, 'blob') end
end

local function note(s, ...)
  if not log or not s.note then return end
  local fields = {'f', ARGV[s.note], 'n', ARGV[s.note + 1], ...}
  local box, latest = boxes[s.mailbox], redis.call('HGET', ARGV[5] .. 'steps', 'latest')
  if latest then  -- the step that a message from outside is given, also one that reaches no box
    fields[#fields + 1] = 's'
    fields[#fields + 1] = string.format('%.0f', box and box.limits and box.step or latest + 1)
  end
  log.last = redis.call('XADD', ARGV[5] .. 'mailbox::log:0', '*', unpack(fields))
end

-- What is published goes out last: between brackets, so that our own subscriptions pass it by. A channel that the
-- server's user may not publish to has no takers.
local outgoing, bare = {}, {}
for i, s in ipairs(writes) do
  if reply[i + 1] == 0 then
    for at = s.at + 6, s.at + 4 + 2 * tonumber(ARGV[s.at + 5]), 2 do outgoing[#outgoing + 1] = {at, not s.boxed} end
    if s.boxed then
      local box = boxes[s.mailbox]
      if box.limits then
        put_from_outside(ARGV[5], box, tonumber(ARGV[s.at + 2]), ARGV[s.at + 3])
      else
        box.last, box.key = redis.call('XADD', box.stream, '*', 'f', ARGV[s.at + 3]), KEYS[s.key]
      end
      note(s)
    elseif s.mailbox == '' then
      bare[#bare + 1] = s
    else
      note(s)
    end
  end
end
local seqs = {}
for mailbox, seq in pairs(planned) do
  local box = boxes[mailbox]
  if box and box.last then
    if box.logged then
      redis.call('HSET', box.key, 'messages', box.messages, 'bytes', box.bytes, 'last', box.last, 'unlogged',
                 box.unlogged, 'unlogged_bytes', box.unlogged_bytes)
    else
      redis.call('HSET', box.key, 'messages', box.messages, 'bytes', box.bytes, 'last', box.last)
    end
  end
  seqs[#seqs + 1], seqs[#seqs + 2] = 's:' .. mailbox, seq
end
if not (number > 0 and any_refused) then
  for low = 1, #seqs, 1000 do redis.call('HSET', KEYS[2], unpack(seqs, low, math.min(low + 999, #seqs))) end
end

if #outgoing > 0 then
  redis.pcall('PUBLISH', ARGV[4], '(')
  -- Messagers of very many agents take all agents' channels, and drop what is not for them: they are no takers.
  local wide = meta[5] and #bare > 0 and redis.pcall('PUBLISH', ARGV[4] .. ':wide', '')
  local agents = 'exps:' .. ARGV[5]:sub(5, -3) .. ':agents:'
  for _, out in ipairs(outgoing) do
    local taken = redis.pcall('PUBLISH', ARGV[out[1]], ARGV[out[1] + 1])
    taken = type(taken) == 'number' and taken or 0
    if type(wide) == 'number' and ARGV[out[1]]:sub(1, #agents) == agents then taken = math.max(0, taken - wide) end
    if out[2] then takers[#takers + 1] = taken end
  end
  redis.pcall('PUBLISH', ARGV[4], ')')
end
if #bare > 0 then
  redis.call('HSET', KEYS[2], 'p:replies', cjson.encode(takers))
  local counted = 0
  for _, s in ipairs(bare) do
    local count, mine = tonumber(ARGV[s.at + 5]), {}
    for at = 1, count do mine[at] = takers[counted + at] end
    counted = counted + count
    note(s, 't', cjson.encode(mine))
  end
end
if log and log.last then
  redis.call('HSET', ARGV[5] .. 'state::log', 'unlogged', log.rows, 'unlogged_bytes', log.bytes, 'last', log.last)
end
reply[#reply + 1] = -1
for _, taken in ipairs(takers) do reply[#reply + 1] = taken end
return reply
