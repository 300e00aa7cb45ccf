-- Add a version to an audience, or remove it. Senders reload the directory before they send anything more.
--
-- KEYS[1] meta  hash: audiences = JSON object of names and their versions that some open step may use, each
--               [number, first step in which it counts, facts (JSON; "": removed)]; directory = version
-- KEYS[2] steps: see step_barrier.lua
-- ARGV[1] name  [2] number of the new version, the last one + 1  [3] facts, or "" to remove it  [4] first step in which it
--         counts, or "": the first one that nobody has opened
-- Returns {1, first step in which it counts}; {0, number of the last version}: that is not the one before
local all = cjson.decode(redis.call('HGET', KEYS[1], 'audiences') or '{}')
local versions, steps = all[ARGV[1]] or {}, redis.call('HMGET', KEYS[2], 'latest', 'sealed')
local last, number = versions[#versions], tonumber(ARGV[2])
if last and last[1] == number and last[3] == ARGV[3] then return {1, last[2]} end
if number ~= (last and last[1] or 0) + 1 then return {0, last and last[1] or 0} end
local since, sealed, kept = tonumber(ARGV[4]) or tonumber(steps[1] or -1) + 1, tonumber(steps[2] or -1), {}
versions[#versions + 1] = {number, since, ARGV[3]}
for i, each in ipairs(versions) do
  local after = versions[i + 1]
  if not after or after[2] > sealed + 1 then kept[#kept + 1] = each end
end
all[ARGV[1]] = kept
redis.call('HSET', KEYS[1], 'audiences', cjson.encode(all))
redis.call('HINCRBY', KEYS[1], 'directory', 1)
return {1, since}
