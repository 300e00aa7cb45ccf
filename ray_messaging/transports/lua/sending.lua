-- Scripts that write frames into mailboxes: for batches, for transactions, and short paths for simple calls.

-- shared verdict_status ----------------------------------------------------------------------------------------------
-- Return a call's status by its verdicts: 0 the verdicts are valid, 2 another interceptor has taken over, 10 the interceptor
-- is the same but its rules have changed, 4 no interceptor was asked although there is one. `given` is ARGV[3] of send; the
-- other arguments are fields of meta. The numbers of an interceptor's rule snapshots are above its epoch and below the next
-- interceptor's epoch. They are compared as texts, because doubles are not exact for numbers of this size.
local function verdict_status(given, interceptor, standing)
  if given == '-2' then return interceptor and 4 or 0 end
  if given == '-1' or interceptor == given or standing == given then return 0 end
  local same = interceptor and (#given > #interceptor or (#given == #interceptor and given > interceptor))
  return same and 10 or 2
end

-- shared sequence_numbers --------------------------------------------------------------------------------------------
-- Reads and writes of fields of a sender's hash, in pieces, because Lua allows at most 8,000 arguments in a call.

-- Return the last sequence numbers in some fields, 0 for a field that does not exist.
local function numbers_of(key, names)
  local numbers = {}
  for low = 1, #names, 1000 do
    local found = redis.call('HMGET', key, unpack(names, low, math.min(low + 999, #names)))
    for i, number in ipairs(found) do numbers[low + i - 1] = tonumber(number or 0) end
  end
  return numbers
end

local function keep_fields(key, fields)
  for low = 1, #fields, 1000 do redis.call('HSET', key, unpack(fields, low, math.min(low + 999, #fields))) end
end

-- shared plain_frame --------------------------------------------------------------------------------------------------
-- A plain frame: a frame for one mailbox, without publications and log notes, outside of transactions. Keys and arguments
-- are those of send.

-- Return the numbers of messages and bytes that the mailbox has with the frame in it. Return nothing if there is any reason
-- against the write; then `send` finds the reason.
local function room_for(state, lease, mailbox, seq, rows, size)
  local sender = redis.call('HMGET', KEYS[2], 'epoch', 's:' .. mailbox)
  local meta = redis.call('HMGET', KEYS[1], 'directory', 'start:interceptor', 'start:standing')
  local box = redis.call('HMGET', state, 'max_messages', 'max_bytes', 'messages', 'bytes', 'leased', 'born', 'logged',
                         'unlogged', 'unlogged_bytes', 'stepped')
  if sender[1] ~= ARGV[1] or tonumber(seq) ~= tonumber(sender[2] or 0) + 1 or (meta[1] or '0') ~= ARGV[2]
      or verdict_status(ARGV[3], meta[2], meta[3]) ~= 0 or not box[1] or box[10] or (box[5] == '1' and redis.call('EXISTS', lease) == 0) then return end
  local messages, bytes, unlogged, unlogged_bytes = box[3] + rows, box[4] + size, 0, 0
  if box[7] then unlogged, unlogged_bytes = (box[8] or 0) + rows, (box[9] or 0) + size end
  if limit_fate(size, tonumber(box[1]), tonumber(box[2]), messages, bytes, unlogged, unlogged_bytes) ~= 0 then return end
  return {stream = ARGV[5] .. 'mailbox:' .. mailbox .. ':' .. box[6], messages = messages, bytes = bytes,
          logged = box[7], unlogged = unlogged, unlogged_bytes = unlogged_bytes}
end

-- shared send_one_frame -----------------------------------------------------------------------------------------------
-- The beginning of script send, for a call with one plain frame (see plain_frame), as most calls are. Without this short
-- way, the rest of the script takes half of the server's time for a single message. If there is no reason against the
-- frame, it is written here. Otherwise send goes on as if nothing was checked here.
if #ARGV == 12 and KEYS[4] and ARGV[6] == '0' and ARGV[11] == '-1' and ARGV[12] == '0' then
  local box = room_for(KEYS[3], KEYS[4], ARGV[7], ARGV[8], tonumber(ARGV[9]), #ARGV[10])
  if box then
    -- While memory is full the server refuses this first write, and then nothing of the call has happened.
    store(KEYS[3], box, redis.call('XADD', box.stream, '*', 'f', ARGV[10]))
    redis.call('HSET', KEYS[2], 's:' .. ARGV[7], ARGV[8])
    return {0, 0, -1}
  end
end

-- script send ---------------------------------------------------------------------------------------------------------
-- Write frames to mailboxes, publications to channels without a mailbox, and notes for the event log; in a transaction also
-- the conclusion (see conclude), all of it or nothing. A transaction that sends nothing uses script commit. The call is
-- atomic, because all data of an experiment are on one primary. Section send_one_frame comes before this one.
--
-- KEYS[1] meta     hash: directory = version, start:interceptor = epoch of the interceptor whose verdicts hold,
--                  start:standing = number of its valid rule snapshot, start:log = 1 while an event log is registered,
--                  wide: see take_mailbox
-- KEYS[2] sender   hash: epoch, s:<mailbox> = last seq written, p:replies = how many subscribers got each of the last
--                  publications, transactions = how many were committed
-- KEYS[3...]       in a transaction first: state of the reader's mailbox (see commit). Then per frame: mailbox state (hash:
--                  messages, bytes, max_messages, max_bytes, leased, born, last = id of the last entry, stepped = 1 if
--                  frames go to boxes of steps: see step_box; while a log is registered: logged, unlogged,
--                  unlogged_bytes), lease
-- ARGV[1] the sender's epoch  [2] directory version  [3] epoch of the interceptor that was asked, or number of the rule
--         snapshot, or -1: a user's own interceptor was asked, or -2: no interceptor was asked, which is allowed only if
--         there is none  [4] channel of the brackets that surround our publications
-- ARGV[5] prefix of this experiment's keys: mailbox:<name>:<born> is a mailbox's stream (f = frame), start:mailbox::log:0 the
--         log stream (f = frame, n = note, t = how many subscribers got each publication, as JSON, s = the step that a
--         frame from outside of the steps got, o = how many rows from outside this step had before the frame),
--         start:state::log a hash (unlogged, unlogged_bytes, max_messages, max_bytes, last)
-- ARGV[6] number of the transaction, from 1; 0: this is no transaction, and the next eleven arguments are left out
-- ARGV[7...17]     see conclude
-- ARGV[...]        per write: mailbox ("" publishes only, ":log" only notes), seq, rows, frame, rows of its note or
--                  -1, number of publications, then channel, data of each, then frame and note where there is a note
-- Returns {status, fates of the writes..., -1, how many subscribers got each publication...}
local number = tonumber(ARGV[6])
local own, own_state, key, arg = nil, nil, 3, number > 0 and 18 or 7
-- One command reads the sender's fields and the number for the first write, because most calls have only one write.
local sender = redis.call('HMGET', KEYS[2], 'epoch', 's:' .. (ARGV[arg] or ''), 'transactions')
local epoch = sender[1]
local status = refuse(epoch, ARGV[1], 3, epoch and 8 or 7)
if status ~= 0 then return {status} end

local over = false  -- this transaction was committed by an earlier attempt
if number > 0 then
  own, key = KEYS[3], 4
  local committed = tonumber(sender[3] or 0)
  if number > committed + 1 then return {6} end
  over = number <= committed
  own_state = reader(own)
  status = over and 0 or refuse(own_state[1], ARGV[7], 5, 11)
  if status ~= 0 then return {status} end
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
for i, last in ipairs(numbers_of(KEYS[2], names)) do
  local s = writes[i + 1]
  s.last = last
  if s.seq > last then fresh = true end
end
if number > 0 then fresh = not over and #writes > 0 end

local reply, takers, meta = {0}, {}, {}
if fresh then
  meta = redis.call('HMGET', KEYS[1], 'directory', 'start:interceptor', 'start:log', 'start:standing', 'wide')
  reply[1] = (meta[1] or '0') ~= ARGV[2] and 1 or verdict_status(ARGV[3], meta[2], meta[4])
end

-- While memory is full the server refuses this first write, and then nothing of the call has happened. Without it, a call
-- that only publishes would succeed, because the server does not refuse PUBLISH.
if fresh and reply[1] == 0 then redis.call('HSET', KEYS[2], 'epoch', epoch) end

-- First decide which writes may be made, counting the room that earlier writes of this call take.

-- The messages and bytes in the log stream that the log does not have yet, and their limits.
local log
if noting and meta[3] and reply[1] == 0 then
  local held = redis.call('HMGET', ARGV[5] .. 'start:state::log', 'unlogged', 'unlogged_bytes', 'max_messages', 'max_bytes')
  log = {rows = tonumber(held[1] or 0), bytes = tonumber(held[2] or 0), max_rows = tonumber(held[3] or 0),
         max_bytes = tonumber(held[4] or 0)}
end
-- Return whether the log stream has no room for a note. An empty stream takes a note of any size; otherwise a note above
-- the limit would wait for ever.
local function crowded(s)
  if not log or not s.note or (log.rows <= 0 and log.bytes <= 0) then return false end
  return log.rows + s.noted > log.max_rows or log.bytes + #ARGV[s.note] + #ARGV[s.note + 1] > log.max_bytes
end

local boxes = {}
local function box_of(s)
  local box = boxes[s.mailbox]
  if box then return box end
  box = counts_of(KEYS[s.key], KEYS[s.key + 1], ARGV[5], s.mailbox)
  if box and box.stepped then
    box = next_box(ARGV[5], s.mailbox)
  elseif box and KEYS[s.key] == own and ARGV[9] ~= '' then  -- messages that the transaction handled make room
    box.messages, box.bytes = behind(own_state, ARGV[9], ARGV[10], ARGV[12], ARGV[13])
  end
  boxes[s.mailbox] = box or {gone = true}
  return boxes[s.mailbox]
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

-- Then write. From here on nothing can fail.

if number > 0 and not over and not any_refused then
  redis.call('HSET', KEYS[2], 'transactions', number)
  conclude(own, own_state, 7)
end

local function note(s, ...)
  if not log or not s.note then return end
  local fields = {'f', ARGV[s.note], 'n', ARGV[s.note + 1], ...}
  local box, latest = boxes[s.mailbox], redis.call('HGET', ARGV[5] .. 'steps', 'latest')
  if latest then  -- the step that a message from outside of the steps gets, even if no box gets the message
    fields[#fields + 1] = 's'
    fields[#fields + 1] = string.format('%.0f', box and box.limits and box.step or latest + 1)
  end
  log.last = redis.call('XADD', ARGV[5] .. 'start:mailbox::log:0', '*', unpack(fields))
end

-- Publications are made last. They are between brackets (see transports/ingress.py), so that our own subscribers skip them.
-- If the server's user may not publish to a channel, nobody gets the publication.
local outgoing, bare = {}, {}
for i, s in ipairs(writes) do
  if reply[i + 1] == 0 then
    for at = s.at + 6, s.at + 4 + 2 * tonumber(ARGV[s.at + 5]), 2 do outgoing[#outgoing + 1] = {at, not s.boxed} end
    if s.boxed then
      local box = boxes[s.mailbox]
      if box.limits then
        note(s, 'o', string.format('%.0f', put_from_outside(ARGV[5], box, tonumber(ARGV[s.at + 2]), ARGV[s.at + 3])))
      else
        box.last, box.written = redis.call('XADD', box.stream, '*', 'f', ARGV[s.at + 3]), true
        note(s)
      end
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
  if box and box.written then store(box.state, box, box.last) end
  seqs[#seqs + 1], seqs[#seqs + 2] = 's:' .. mailbox, seq
end
if not (number > 0 and any_refused) then keep_fields(KEYS[2], seqs) end

if #outgoing > 0 then
  redis.pcall('PUBLISH', ARGV[4], '(')
  -- A messager of very many agents subscribes to all agents' channels, and drops messages for other agents. So these
  -- subscribers are not counted.
  local wide = meta[5] and #bare > 0 and redis.pcall('PUBLISH', ARGV[4] .. ':wide', '')
  local agents = 'exps:' .. ARGV[5]:sub(5, -3) .. ':agents:'
  for _, out in ipairs(outgoing) do
    local taken = redis.pcall('PUBLISH', channel_here(ARGV[5], ARGV[out[1]]), ARGV[out[1] + 1])
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
  redis.call('HSET', ARGV[5] .. 'start:state::log', 'unlogged', log.rows, 'unlogged_bytes', log.bytes, 'last', log.last)
end
reply[#reply + 1] = -1
for _, taken in ipairs(takers) do reply[#reply + 1] = taken end
return reply

-- script large_frames -------------------------------------------------------------------------------------------------
-- Write large plain frames (see plain_frame), each for another mailbox, all of them or none. The server copies and hashes
-- each argument of a script, and copies it again for XADD. For a large frame these copies take as long as all other work.
-- So the frames are no arguments of this script. It is called twice in a transaction, with an XADD for each frame between:
--
-- MULTI, large_frames 'open', XADD <prefix>start:open:<mailbox> NOMKSTREAM * f <frame> ..., large_frames 'close', EXEC
--
-- If all mailboxes can take their frames, 'open' renames their streams to start:open:<mailbox>, and 'close' renames them
-- back. If 'open' has not renamed a stream, XADD adds nothing, because of NOMKSTREAM. No other client sees these names,
-- because no command of another client runs during a transaction. 'open' and 'close' are one script, because the server may
-- forget one of two scripts.
--
-- KEYS, ARGV[1...5]  as in send
-- ARGV[6] 'open' or 'close'   ARGV[...] per frame: mailbox, seq, rows, size of the frame, -1, 0
-- Returns 0: done  1: nothing was done, send says why  2: nothing was done, because the user lacks a right
local GROUP = 'ray_messaging:last'
local frames = {}
for at = 7, #ARGV, 6 do
  local key = 3 + 2 * #frames
  frames[#frames + 1] = {state = KEYS[key], lease = KEYS[key + 1], mailbox = ARGV[at], seq = ARGV[at + 1],
                         rows = tonumber(ARGV[at + 2]), size = tonumber(ARGV[at + 3]), open = ARGV[5] .. 'start:open:' .. ARGV[at]}
end

-- Return whether our user may run all commands of the transaction. If MULTI were refused, the commands would run one by
-- one, and the connection could be lost between two of them.
local function may_write(stream, open)
  for _, command in ipairs({{'MULTI'}, {'EXEC'}, {'RENAME', stream, open}, {'RENAME', open, stream},
                            {'XADD', open, '*', 'f', ''}, {'XGROUP', 'CREATE', stream, GROUP, '$'},
                            {'XINFO', 'GROUPS', stream}, {'XGROUP', 'DESTROY', stream, GROUP}}) do
    if not redis.acl_check_cmd(unpack(command)) then return false end
  end
  return true
end

-- Return the id of a stream's last entry. A consumer group is used, because all other commands that return the id also
-- return the entry itself, which is large.
local function last_id(stream)
  redis.call('XGROUP', 'CREATE', stream, GROUP, '$')
  local groups, last = redis.call('XINFO', 'GROUPS', stream), nil
  redis.call('XGROUP', 'DESTROY', stream, GROUP)
  for _, group in ipairs(groups) do
    local fields = {}
    for at = 1, #group, 2 do fields[group[at]] = group[at + 1] end
    if fields['name'] == GROUP then last = fields['last-delivered-id'] end
  end
  return last
end

if ARGV[6] == 'open' then
  for _, frame in ipairs(frames) do
    frame.box = room_for(frame.state, frame.lease, frame.mailbox, frame.seq, frame.rows, frame.size)
    if not frame.box or redis.call('EXISTS', frame.box.stream) == 0 then return 1 end  -- a new mailbox has no stream yet
    if not may_write(frame.box.stream, frame.open) then return 2 end
  end
  for _, frame in ipairs(frames) do
    redis.call('RENAME', frame.box.stream, frame.open)
    store(frame.state, frame.box, redis.call('HGET', frame.state, 'last') or '0-0')
    redis.call('HSET', KEYS[2], 's:' .. frame.mailbox, frame.seq)
  end
else
  local closed = {}
  for _, frame in ipairs(frames) do
    if redis.call('EXISTS', frame.open) == 1 then
      frame.stream = ARGV[5] .. 'mailbox:' .. frame.mailbox .. ':' .. redis.call('HGET', frame.state, 'born')
      redis.call('RENAME', frame.open, frame.stream)
      closed[#closed + 1] = frame
    end
  end
  for _, frame in ipairs(closed) do redis.call('HSET', frame.state, 'last', last_id(frame.stream)) end
end
return 0

-- script take_sender_epoch --------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Raise a sender's epoch and return its state; earlier senders under this name are fenced.
--
-- KEYS[1] sender  hash: epoch, s:<mailbox> = last seq, taker = the caller that raised the epoch last
-- ARGV[1] ms until the hash expires, or 0: never  [2] the epoch that the caller knows ("": none, at its first call)
-- ARGV[3] the caller. If an answer was lost, the caller knows a lower epoch than it took
-- Returns the hash, field by field; nothing if another caller has raised the epoch since; {-1} if the hash is gone
local now, held = redis.call('HMGET', KEYS[1], 'epoch', 'taker'), tonumber(ARGV[2])
if held and not now[1] then return {-1} end
if held and tonumber(now[1]) > held and now[2] ~= ARGV[3] then return {} end
raise_number(KEYS[1], 'epoch', held)
redis.call('HSET', KEYS[1], 'taker', ARGV[3])
if ARGV[1] ~= '0' then redis.call('PEXPIRE', KEYS[1], ARGV[1]) else redis.call('PERSIST', KEYS[1]) end
return redis.call('HGETALL', KEYS[1])

-- script forget_sender ------------------------------------------------------------------------------------------------
#!lua flags=allow-oom
-- Delete a sender's state, or its sequence numbers for removed mailboxes. Allowed when memory is full, because this frees
-- memory.
--
-- KEYS[1] sender  hash: epoch, s:<mailbox> = last seq (see send)
-- ARGV[1] the caller's epoch  [2] ms after which the whole hash is deleted; -1: only some fields are deleted now
-- ARGV[3...] these fields, up to 1,000
-- Returns 1, or 0 if a newer sender has this name, or the hash is gone
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
if ARGV[2] == '-1' then redis.call('HDEL', KEYS[1], unpack(ARGV, 3)) else redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
