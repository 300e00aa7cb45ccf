-- Write a batch: frames into mailboxes, publications to bare channels. Atomic: one experiment, one primary.
--
-- KEYS[1] meta     hash: directory = version, interceptor = epoch of the one whose verdicts count
-- KEYS[2] sender   hash: epoch, s:<mailbox> = last seq written, p:replies = takers of the last publications
-- KEYS[3...]       per frame: mailbox stream, mailbox state (hash: messages, bytes, max_messages, max_bytes, leased),
--                  lease
-- ARGV[1] epoch  [2] directory version  [3] interceptor epoch or -1  [4] channel of the brackets round what we publish
-- ARGV[5...]       per shipment: mailbox ("" publishes only), seq, rows, frame, number of publications,
--                  then channel, data of each
-- Returns {status, fates of the shipments..., -1, takers of the publications...}
local epoch = redis.call('HGET', KEYS[2], 'epoch')
if epoch ~= ARGV[1] then return {3} end

local shipments, key, arg = {}, 3, 5
local fresh = false
while arg <= #ARGV do
  local s = {mailbox = ARGV[arg], seq = tonumber(ARGV[arg + 1]), at = arg, key = key,
             last = tonumber(redis.call('HGET', KEYS[2], 's:' .. ARGV[arg]) or 0)}
  if s.mailbox ~= '' then key = key + 3 end
  if s.seq > s.last then fresh = true end
  arg = arg + 5 + 2 * tonumber(ARGV[arg + 4])
  shipments[#shipments + 1] = s
end

local reply, takers = {0}, {}
if fresh then
  local meta = redis.call('HMGET', KEYS[1], 'directory', 'interceptor')
  if (meta[1] or '0') ~= ARGV[2] then reply[1] = 1
  elseif ARGV[3] ~= '-1' and meta[2] ~= ARGV[3] then reply[1] = 2 end
end

-- Refused while memory is full, as all writes are, and before anything has happened: PUBLISH alone would go out.
if fresh and reply[1] == 0 then redis.call('HSET', KEYS[2], 'epoch', epoch) end

-- What is published goes out at the end, when nothing can fail any more: between brackets, so that our own
-- subscriptions pass it by. A channel that the server's user may not publish to has no takers.
local outgoing = {}
local function publish(at, counted)
  for i = at + 5, at + 3 + 2 * tonumber(ARGV[at + 4]), 2 do outgoing[#outgoing + 1] = {i, counted} end
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
  elseif s.mailbox == '' then
    bare = s.seq
    publish(s.at, true)
  else
    local rows, frame = tonumber(ARGV[s.at + 2]), ARGV[s.at + 3]
    local state = redis.call('HMGET', KEYS[s.key + 1], 'messages', 'bytes', 'max_messages', 'max_bytes', 'leased')
    if not state[3] or (state[5] == '1' and redis.call('EXISTS', KEYS[s.key + 2]) == 0) then
      fate = 3
    elseif #frame > tonumber(state[4]) then
      fate = 5
    elseif tonumber(state[1]) + rows > tonumber(state[3]) or tonumber(state[2]) + #frame > tonumber(state[4]) then
      fate = 2
    else
      redis.call('XADD', KEYS[s.key], '*', 'f', frame)
      redis.call('HINCRBY', KEYS[s.key + 1], 'messages', rows)
      redis.call('HINCRBY', KEYS[s.key + 1], 'bytes', #frame)
      redis.call('HSET', KEYS[2], 's:' .. s.mailbox, s.seq)
      publish(s.at, false)
    end
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
if bare then redis.call('HSET', KEYS[2], 's:', bare, 'p:replies', cjson.encode(takers)) end
reply[#reply + 1] = -1
for _, taken in ipairs(takers) do reply[#reply + 1] = taken end
return reply
