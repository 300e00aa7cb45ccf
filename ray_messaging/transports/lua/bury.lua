-- Shared by directory.lua and remove.lua: take a mailbox out; its unread frames become dead letters.
local function bury(keys, prefix, name, reason)
  local stream, state = prefix .. 'mailbox:' .. name, prefix .. 'state:' .. name
  local cursor = redis.call('HMGET', state, 'entry', 'row')
  local frames = redis.call('XRANGE', stream, cursor[1] or '-', '+')
  local buried = 0
  for _, entry in ipairs(frames) do
    local row = entry[1] == cursor[1] and cursor[2] or '0'
    redis.call('XADD', keys[4], '*', 'mailbox', name, 'entry', entry[1], 'row', row, 'reason', reason,
               'f', entry[2][2])
    buried = buried + 1
  end
  redis.call('DEL', stream, state, prefix .. 'lease:' .. name)
  if redis.call('HDEL', keys[2], name) + redis.call('HDEL', keys[3], name) > 0 then
    redis.call('HINCRBY', keys[1], 'directory', 1)
  end
  return buried
end
