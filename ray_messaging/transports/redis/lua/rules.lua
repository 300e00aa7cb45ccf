-- Keep what rules counted, and the answers that rest on it.
--
-- KEYS[1] meta     hash: interceptor = epoch of the one that may write
-- KEYS[2] answers  hash: name of a batch or message -> its verdicts
-- KEYS[3] rules    list: the name under which Ray keeps the rules in force, then their own names, in order
-- KEYS[4...]       per table: the hash (JSON key -> JSON value), and the hash that takes its place
-- ARGV[1] epoch  [2] number of answers, then name and verdicts of each; number of answers to forget, then their names;
--         number of names for the list (-1: as it was), then these;
--         per table: 1 if it is replaced; number of fields, then field and value of each; number of fields to delete,
--         then the fields
-- Returns 1, or 0 where a newer interceptor has taken over
if (redis.call('HGET', KEYS[1], 'interceptor') or '0') ~= ARGV[1] then return 0 end

local at = 2
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
return 1
