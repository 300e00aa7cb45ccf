-- Shared by directory.lua and remove.lua: take a mailbox out; its unread frames become dead letters. While an event log
-- is registered its stream stays until the log has read it to its end, under another key, as its reader must not go on
-- reading what became dead letters: ended:<mailbox>:<born>. The set `ended` names it, and an entry in the log stream
-- (m = <mailbox>:<born>) wakes the log's writer.
local function bury(keys, prefix, name, reason)
  local state = prefix .. 'state:' .. name
  local now = redis.call('HMGET', state, 'entry', 'row', 'born')
  local buried = 0
  if now[3] then
    local stream = prefix .. 'mailbox:' .. name .. ':' .. now[3]
    -- What the reader has handled may still be there, for the log: it is not dead.
    local first = now[2] == '0' and '(' .. now[1] or now[1]
    for _, entry in ipairs(redis.call('XRANGE', stream, first, '+')) do
      local row = entry[1] == now[1] and now[2] or '0'
      redis.call('XADD', keys[4], '*', 'mailbox', name, 'entry', entry[1], 'row', row, 'reason', reason,
                 'f', entry[2][2])
      buried = buried + 1
    end
    if redis.call('HEXISTS', keys[1], 'log') == 0 then
      redis.call('DEL', stream)
    else
      if redis.call('EXISTS', stream) == 1 then
        redis.call('RENAME', stream, prefix .. 'ended:' .. name .. ':' .. now[3])
      end
      redis.call('SADD', prefix .. 'ended', name .. ':' .. now[3])
      redis.call('XADD', prefix .. 'mailbox::log:0', '*', 'm', name .. ':' .. now[3])
    end
  end
  redis.call('DEL', state, prefix .. 'lease:' .. name)
  if redis.call('HDEL', keys[2], name) + redis.call('HDEL', keys[3], name) > 0 then
    redis.call('HINCRBY', keys[1], 'directory', 1)
  end
  return buried
end
