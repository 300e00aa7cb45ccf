-- Shared by take_mailbox.lua and rehost_agents.lua: date a change of the agents of mailboxes, which a directory version
-- has made. It counts from the first step that nobody has opened; returns that step.
--
-- meta  hash: hosts = <step>:<version> by commas, ascending: changes from that version up to the next one count from that
--       step on. Those from which on no message can wait in boxes any more are left out.
local function date_change(meta, steps, version)
  local now, kept = redis.call('HMGET', steps, 'latest', 'sealed', 'horizon'), {}
  local since, oldest, last = tonumber(now[1]) + 1, tonumber(now[2]) - tonumber(now[3]), -1
  for step, first in (redis.call('HGET', meta, 'hosts') or ''):gmatch('(%d+):(%d+)') do
    last = tonumber(step)
    if last > oldest then kept[#kept + 1] = step .. ':' .. first end
  end
  if last ~= since then kept[#kept + 1] = string.format('%.0f:%.0f', since, version) end
  redis.call('HSET', meta, 'hosts', table.concat(kept, ','))
  return since
end
