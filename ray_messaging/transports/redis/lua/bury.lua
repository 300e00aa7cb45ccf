-- Shared by directory.lua, remove.lua, reject.lua, requeue.lua and drop.lua: what becomes, and what was, a dead letter.
--
-- dead         stream: frames nobody will read: mailbox, entry, row (rows before it were handled), reason, f = frame;
--              born = incarnations of mailboxes given out when its mailbox went, exclusive = 1 where that one alone
--              listened for its agents (both missing: its reader could not decode it); at = ms, where the letter is what
--              is left of an older one
-- state::dead  hash: bytes = of all letters, dropped and dropped_bytes = of those that the limit took, call and answer =
--              the last requeue or drop, which may be repeated
-- A letter counts as its frame and 256 bytes: those without a frame are bounded, too.
local function weight(fields)
  for i = 1, #fields, 2 do
    if fields[i] == 'f' then return #fields[i + 1] + 256 end
  end
  return 256
end

-- Take a letter out of the stream; returns what it weighed.
local function release(dead, state, letter)
  local nbytes = weight(letter[2])
  redis.call('XDEL', dead, letter[1])
  redis.call('HINCRBY', state, 'bytes', -nbytes)
  if redis.call('XLEN', dead) == 0 then redis.call('HSET', state, 'bytes', 0) end
  return nbytes
end

-- Add a letter, and drop the oldest ones that are too many.
local function lay(dead, prefix, limit, fields)
  local state = prefix .. 'state::dead'
  redis.call('XADD', dead, '*', unpack(fields))
  local held = redis.call('HINCRBY', state, 'bytes', weight(fields))
  while held > tonumber(limit) do
    local oldest = redis.call('XRANGE', dead, '-', '+', 'COUNT', 1)[1]
    if not oldest then return end
    local nbytes = release(dead, state, oldest)
    held = held - nbytes
    redis.call('HINCRBY', state, 'dropped', 1)
    redis.call('HINCRBY', state, 'dropped_bytes', nbytes)
  end
end

-- Take a mailbox out; its unread frames become dead letters. While an event log is registered its stream stays until the
-- log has read it to its end, under another key, as its reader must not go on reading what became dead letters:
-- ended:<mailbox>:<born>. The set `ended` names it, and an entry in the log stream (m = <mailbox>:<born>) wakes the
-- log's writer. What its reader has rejected is a dead letter already: the stream rejected:<mailbox>:<born> has its ids.
local function bury(keys, prefix, name, reason, limit)
  local state = prefix .. 'state:' .. name
  local now = redis.call('HMGET', state, 'entry', 'row', 'born', 'exclusive')
  local buried = 0
  if now[3] then
    local stream, rejected = prefix .. 'mailbox:' .. name .. ':' .. now[3], prefix .. 'rejected:' .. name .. ':' .. now[3]
    local born = redis.call('HGET', keys[1], 'born') or now[3]
    -- What the reader has handled may still be there, for the log: it is not dead.
    local first = now[2] == '0' and '(' .. now[1] or now[1]
    local logged = redis.call('HEXISTS', keys[1], 'log') == 1
    while first do
      local entries = redis.call('XRANGE', stream, first, '+', 'COUNT', 16)
      for _, entry in ipairs(entries) do
        if #redis.call('XRANGE', rejected, entry[1], entry[1]) == 0 then
          local row = entry[1] == now[1] and now[2] or '0'
          lay(keys[4], prefix, limit, {'mailbox', name, 'entry', entry[1], 'row', row, 'reason', reason,
              'born', born, 'exclusive', now[4] or '0', 'f', entry[2][2]})
          buried = buried + 1
        end
        if not logged then redis.call('XDEL', stream, entry[1]) end  -- so that memory holds it once
      end
      first = #entries == 16 and '(' .. entries[16][1]
    end
    if not logged then
      redis.call('DEL', stream)
    else
      if redis.call('EXISTS', stream) == 1 then
        redis.call('RENAME', stream, prefix .. 'ended:' .. name .. ':' .. now[3])
      end
      redis.call('SADD', prefix .. 'ended', name .. ':' .. now[3])
      redis.call('XADD', prefix .. 'mailbox::log:0', '*', 'm', name .. ':' .. now[3])
    end
    redis.call('DEL', rejected)
  end
  redis.call('DEL', state, prefix .. 'lease:' .. name)
  if redis.call('HDEL', keys[2], name) + redis.call('HDEL', keys[3], name) > 0 then
    redis.call('HINCRBY', keys[1], 'directory', 1)
  end
  return buried
end
