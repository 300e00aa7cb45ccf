-- Write a batch: frames into mailboxes, publications to bare channels, notes for the event log. Atomic: one experiment,
-- one primary.
--
-- KEYS[1] meta     hash: directory = version, interceptor = epoch of the one whose verdicts count, log = 1 while an
--                  event log is registered
-- KEYS[2] sender   hash: epoch, s:<mailbox> = last seq written, p:replies = takers of the last publications
-- KEYS[3...]       per frame: mailbox state (hash: messages, bytes, max_messages, max_bytes, leased, born, last = id of
--                  the last entry; while a log is registered: logged, unlogged, unlogged_bytes), lease
-- ARGV[1] epoch  [2] directory version  [3] interceptor epoch, -1 of a user's own, or -2: nobody was asked, which counts
--         only where there is no interceptor  [4] channel of the brackets round what we publish
-- ARGV[5] prefix of this experiment's keys: mailbox:<name>:<born> is a mailbox's stream (f = frame), mailbox::log:0 the
--         log stream (f = frame, n = note, t = takers as JSON), state::log a hash (unlogged, unlogged_bytes,
--         max_messages, max_bytes, last)
-- ARGV[6...]       per shipment: mailbox ("" publishes only, ":log" only notes), seq, rows, frame, rows of its note or
--                  -1, number of publications, then channel, data of each, then frame and note where there is a note
-- Returns {status, fates of the shipments..., -1, takers of the publications...}
local epoch = redis.call('HGET', KEYS[2], 'epoch')
if epoch ~= ARGV[1] then return {3} end

local shipments, key, arg = {}, 3, 6
local fresh, noting = false, false
while arg <= #ARGV do
  local s = {mailbox = ARGV[arg], seq = tonumber(ARGV[arg + 1]), at = arg, key = key, noted = tonumber(ARGV[arg + 4]),
             last = tonumber(redis.call('HGET', KEYS[2], 's:' .. ARGV[arg]) or 0)}
  if s.mailbox ~= '' and s.mailbox ~= ':log' then key = key + 2 end
  if s.seq > s.last then fresh = true end
  arg = arg + 6 + 2 * tonumber(ARGV[arg + 5])
  if s.noted >= 0 then
    noting, s.note = true, arg
    arg = arg + 2
  end
  shipments[#shipments + 1] = s
end

local reply, takers, meta = {0}, {}, {}
if fresh then
  meta = redis.call('HMGET', KEYS[1], 'directory', 'interceptor', 'log')
  if (meta[1] or '0') ~= ARGV[2] then reply[1] = 1
  elseif ARGV[3] == '-2' then if meta[2] then reply[1] = 4 end
  elseif ARGV[3] ~= '-1' and meta[2] ~= ARGV[3] then reply[1] = 2 end
end

-- Refused while memory is full, as all writes are, and before anything has happened: PUBLISH alone would go out.
if fresh and reply[1] == 0 then redis.call('HSET', KEYS[2], 'epoch', epoch) end

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
local function reserve(s)
  if not log or not s.note then return end
  log.rows, log.bytes = log.rows + s.noted, log.bytes + #ARGV[s.note] + #ARGV[s.note + 1]
end
local function note(s, ...)
  if not log or not s.note then return end
  log.last = redis.call('XADD', ARGV[5] .. 'mailbox::log:0', '*', 'f', ARGV[s.note], 'n', ARGV[s.note + 1], ...)
end

-- What is published goes out at the end, when nothing can fail any more: between brackets, so that our own
-- subscriptions pass it by. A channel that the server's user may not publish to has no takers.
local outgoing = {}
local function publish(at, counted)
  for i = at + 6, at + 4 + 2 * tonumber(ARGV[at + 5]), 2 do outgoing[#outgoing + 1] = {i, counted} end
end

local function write(s)
  local rows, frame, state = tonumber(ARGV[s.at + 2]), ARGV[s.at + 3], KEYS[s.key]
  local now = redis.call('HMGET', state, 'messages', 'bytes', 'max_messages', 'max_bytes', 'leased', 'born', 'logged',
                         'unlogged', 'unlogged_bytes')
  if not now[3] or (now[5] == '1' and redis.call('EXISTS', KEYS[s.key + 1]) == 0) then return 3 end
  local max_rows, max_bytes = tonumber(now[3]), tonumber(now[4])
  if #frame > max_bytes then return 5 end
  local messages, bytes = tonumber(now[1]) + rows, tonumber(now[2]) + #frame
  if messages > max_rows or bytes > max_bytes then return 2 end
  local unlogged, unlogged_bytes = tonumber(now[8] or 0) + rows, tonumber(now[9] or 0) + #frame
  if (now[7] and (unlogged > max_rows or unlogged_bytes > max_bytes)) or crowded(s) then return 6 end
  reserve(s)
  local id = redis.call('XADD', ARGV[5] .. 'mailbox:' .. s.mailbox .. ':' .. now[6], '*', 'f', frame)
  if now[7] then
    redis.call('HSET', state, 'messages', messages, 'bytes', bytes, 'last', id, 'unlogged', unlogged,
               'unlogged_bytes', unlogged_bytes)
  else
    redis.call('HSET', state, 'messages', messages, 'bytes', bytes, 'last', id)
  end
  note(s)
  redis.call('HSET', KEYS[2], 's:' .. s.mailbox, s.seq)
  publish(s.at, false)
  return 0
end

local written, refused = {}, {}
local bare
for _, s in ipairs(shipments) do
  local fate = 0
  if s.seq <= s.last then
    fate = 1
    if s.mailbox == '' then takers = cjson.decode(redis.call('HGET', KEYS[2], 'p:replies') or '[]') end
  elseif reply[1] ~= 0 or refused[s.mailbox] then
    fate = 2
  elseif s.seq ~= (written[s.mailbox] or s.last) + 1 then
    fate = 4
  elseif s.mailbox ~= '' and s.mailbox ~= ':log' then
    fate = write(s)
  elseif crowded(s) then
    fate = 6
  elseif s.mailbox == '' then
    bare = s
    reserve(s)
    publish(s.at, true)
  else
    reserve(s)
    note(s)
    redis.call('HSET', KEYS[2], 's::log', s.seq)
  end
  if fate == 0 then written[s.mailbox] = s.seq elseif fate > 1 then refused[s.mailbox] = true end
  reply[#reply + 1] = fate
end

if #outgoing > 0 then
  redis.pcall('PUBLISH', ARGV[4], '(')
  for _, out in ipairs(outgoing) do
    local taken = redis.pcall('PUBLISH', ARGV[out[1]], ARGV[out[1] + 1])
    if out[2] then takers[#takers + 1] = type(taken) == 'number' and taken or 0 end
  end
  redis.pcall('PUBLISH', ARGV[4], ')')
end
if bare then
  local replies = cjson.encode(takers)
  redis.call('HSET', KEYS[2], 's:', bare.seq, 'p:replies', replies)
  note(bare, 't', replies)
end
if log and log.last then
  redis.call('HSET', ARGV[5] .. 'state::log', 'unlogged', log.rows, 'unlogged_bytes', log.bytes, 'last', log.last)
end
reply[#reply + 1] = -1
for _, taken in ipairs(takers) do reply[#reply + 1] = taken end
return reply
