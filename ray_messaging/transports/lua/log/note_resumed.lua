#!lua flags=allow-oom
-- Record the totals of earlier writers of the event log: one that died may have kept more than it reported.
--
-- KEYS[1] meta       hash: log = 1 while a log is registered
-- KEYS[2] log state  hash: epoch of the log's writer, and what any state has
-- ARGV[1] the writer's epoch  [2] prefix of this experiment's keys: state:<name> is a hash (born, unlogged and
--         unlogged_bytes = what the log does not have, base and base_bytes = what earlier writers told that they took;
--         none: nothing, empty: not known)
-- ARGV[3...] for each stream: <name>:<born>, messages and bytes that the log has of it
-- Returns 1, or 0 where a newer writer has the log, or none is registered
if redis.call('HGET', KEYS[2], 'epoch') ~= ARGV[1] or redis.call('HEXISTS', KEYS[1], 'log') == 0 then return 0 end
local function left(unlogged, base, taken)
  unlogged = tonumber(unlogged or 0)
  if base == '' then return unlogged end
  return math.max(0, unlogged - math.max(0, taken - tonumber(base or 0)))
end
for i = 3, #ARGV, 3 do
  local name, born = ARGV[i]:match('^(.*):(%d+)$')
  local state, taken, taken_bytes = ARGV[2] .. 'state:' .. name, tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local now = redis.call('HMGET', state, 'born', 'unlogged', 'base', 'unlogged_bytes', 'base_bytes')
  if now[1] == born then
    redis.call('HSET', state, 'unlogged', left(now[2], now[3], taken), 'base', taken,
               'unlogged_bytes', left(now[4], now[5], taken_bytes), 'base_bytes', taken_bytes)
  end
end
return 1
