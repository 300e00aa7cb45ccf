-- Shared by release_agents.lua and give_up_release.lua: attempts to let agents leave a mailbox, by their numbers.

-- What an attempt gets that is not to be made: 0 it is done, 7 it was given up, -1 it is an older reader's, -2 the server
-- has lost this one; nil where it is to be made.
local function check_attempt(key, epoch, mine, number)
  if epoch ~= mine then return epoch and tonumber(epoch) > tonumber(mine) and -1 or -2 end
  local known = redis.call('HMGET', key, 'released', 'departed')
  local last_epoch, last = (known[1] or ''):match('^(%d+) (%d+)$')
  if last_epoch ~= mine or tonumber(number) > tonumber(last) then return nil end
  return known[2] == mine .. ' ' .. number and 0 or 7
end

-- Let a mailbox take messages again that took none while agents were leaving it.
local function let_in(key)
  local now = redis.call('HMGET', key, 'held', 'max_messages')
  if now[1] and now[2] == '0' then redis.call('HSET', key, 'max_messages', now[1]) end
  if now[1] then redis.call('HDEL', key, 'held') end
end
