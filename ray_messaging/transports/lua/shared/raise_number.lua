-- Shared by take_sender_epoch.lua and take_mailbox.lua: raise a number above all that its field has had, and above those that were given
-- out before the server lost its data: it is at least the time in ms.
local function raise_number(key, field, above)
  local now, last = redis.call('TIME'), tonumber(redis.call('HGET', key, field) or 0)
  local number = math.max(last + 1, (above or 0) + 1, now[1] * 1000 + math.floor(now[2] / 1000))
  local text = string.format('%.0f', number)
  redis.call('HSET', key, field, text)
  return text
end
