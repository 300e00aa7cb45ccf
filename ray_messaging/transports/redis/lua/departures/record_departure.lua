-- Change the records of a mailbox that agents have left and of the one to which they go, in the directory, once.
--
-- KEYS[1] meta, [2] records, [3] changes: as in load_directory.lua  [4] entries, [5] entered: see enter_mailbox.lua
-- KEYS[6] recorded  hash: mailbox -> <epoch> <number> of the last attempt of release_agents.lua that the directory has
-- ARGV[1] directory version  [2] the mailbox that they left  [3] epoch and [4] number of its attempt  [5...] mailbox, record
-- Returns 0: it is done; 1: the directory has changed
if is_known(KEYS[6], ARGV[2], ARGV[3], ARGV[4]) then return 0 end
if (redis.call('HGET', KEYS[1], 'directory') or '0') ~= ARGV[1] then return 1 end
local version = redis.call('HINCRBY', KEYS[1], 'directory', 1)
redis.call('HSET', KEYS[6], ARGV[2], ARGV[3] .. ' ' .. ARGV[4])
for arg = 5, #ARGV, 2 do
  local entry = redis.call('HGET', KEYS[4], ARGV[arg])
  if entry then
    redis.call('HSET', KEYS[5], ARGV[arg], ARGV[arg + 1])
    redis.call('HSET', KEYS[4], ARGV[arg], version .. entry:match('^%d+(:.*)$'))
  elseif redis.call('HEXISTS', KEYS[2], ARGV[arg]) == 1 then
    redis.call('HSET', KEYS[2], ARGV[arg], ARGV[arg + 1])
    redis.call('HSET', KEYS[3], ARGV[arg], version)
  end
end
return 0
