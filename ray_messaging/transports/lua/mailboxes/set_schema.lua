-- Set or remove the schema of a subtopic's payloads. Senders reload the directory before they send anything more.
--
-- KEYS[1] meta  hash: schemas = JSON object of subtopics and their schemas, directory = version
-- ARGV[1] subtopic  [2] JSON Schema, or "" for none
-- Returns 1; 0: it was so before
local all = cjson.decode(redis.call('HGET', KEYS[1], 'schemas') or '{}')
if (all[ARGV[1]] or '') == ARGV[2] then return 0 end
all[ARGV[1]] = ARGV[2] ~= '' and ARGV[2] or nil
if next(all) then
  redis.call('HSET', KEYS[1], 'schemas', cjson.encode(all))
else
  redis.call('HDEL', KEYS[1], 'schemas')
end
redis.call('HINCRBY', KEYS[1], 'directory', 1)
return 1
