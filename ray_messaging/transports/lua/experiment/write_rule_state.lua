-- Write the tables of rules, and the answers that depend on them. Writes are numbered: a repeated or late one changes
-- nothing, and a server that has lost a write reports it.
--
-- KEYS[1] meta     hash: interceptor = epoch of the one that may write, kept = number of its last write
-- KEYS[2] answers  hash: name of a batch or message -> its verdicts
-- KEYS[3] rules    list: the name under which Ray keeps the rules in force, then their own names, in order
-- KEYS[4...]       per table: the hash (JSON key -> JSON value), and the hash that takes its place
-- ARGV[1] epoch  [2] number of this write  [3] number of the last one that the caller knows to be here  [4] 1: this is
--         all that there is: other answers go
-- ARGV[5] number of answers, then name and verdicts of each; number of answers to forget, then their names;
--         number of names for the list (-1: as it was), then these;
--         per table: 1 if it is replaced; number of fields, then field and value of each; number of fields to delete,
--         then the fields
-- Returns 1; 0 where another interceptor has taken over; -1 where the last write that the caller knows of is not here
local now = redis.call('HMGET', KEYS[1], 'interceptor', 'kept')
local kept = tonumber(now[2] or 0)
if (now[1] or '0') ~= ARGV[1] then return 0 end
if kept < tonumber(ARGV[3]) then return -1 end
if kept >= tonumber(ARGV[2]) then
  for key = 5, #KEYS, 2 do redis.call('DEL', KEYS[key]) end
  return 1
end
if ARGV[4] == '1' then redis.call('DEL', KEYS[2]) end

local at = 5
local function chunk(count, width, command, key)
  local last = at + count * width
  at = at + 1
  while at <= last do
    local to = math.min(last, at + 999)
    redis.call(command, key, unpack(ARGV, at, to))
    at = to + 1
  end
end

chunk(tonumber(ARGV[at]), 2, 'HSET', KEYS[2])
chunk(tonumber(ARGV[at]), 1, 'HDEL', KEYS[2])
local names = tonumber(ARGV[at])
if names >= 0 then
  redis.call('DEL', KEYS[3])
  chunk(names, 1, 'RPUSH', KEYS[3])
else
  at = at + 1
end
for key = 4, #KEYS, 2 do
  at = at + 1
  if ARGV[at - 1] == '1' then
    redis.call('DEL', KEYS[key])
    if redis.call('EXISTS', KEYS[key + 1]) == 1 then redis.call('RENAME', KEYS[key + 1], KEYS[key]) end
  end
  chunk(tonumber(ARGV[at]), 2, 'HSET', KEYS[key])
  chunk(tonumber(ARGV[at]), 1, 'HDEL', KEYS[key])
end
redis.call('HSET', KEYS[1], 'kept', ARGV[2])
return 1
