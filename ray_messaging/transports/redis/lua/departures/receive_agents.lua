-- Write what comes with agents from a mailbox on another server, once. It has been committed there: neither a full mailbox nor
-- a full log refuses it, and where the mailbox is gone by now it becomes dead letters, as if it had been there before.
--
-- KEYS[1] meta  hash: born  [2] dead: see dead_letter_retention.lua  [3] state and [4] lease of the mailbox
-- KEYS[5] arrived  hash: mailbox that agents left -> <epoch> <number> of its last attempt of release_agents.lua that was
--         written here, then a space and those agents
-- ARGV[1] prefix of this experiment's keys  [2] the mailbox that they left  [3] epoch and [4] number of its attempt
-- ARGV[5] the agents  [6] the mailbox  [7] bytes of dead letters that are kept  [8...] rows, frame
-- Returns 1; 0: it was written before
if is_known(KEYS[5], ARGV[2], ARGV[3], ARGV[4]) then return 0 end
redis.call('HSET', KEYS[5], ARGV[2], ARGV[3] .. ' ' .. ARGV[4] .. ' ' .. ARGV[5])
local box = target_of(KEYS[3], KEYS[4], ARGV[1], ARGV[6])
local added, letters, born, now = 0, 0, redis.call('HGET', KEYS[1], 'born') or '0', redis.call('TIME')
local entry = now[1] .. string.format('%03d-0', now[2] / 1000)
for arg = 8, #ARGV, 2 do
  if box then
    count(box, tonumber(ARGV[arg]), #ARGV[arg + 1])
    box.last = redis.call('XADD', box.stream, '*', 'f', ARGV[arg + 1])
  elseif ARGV[arg] ~= '0' then
    letters = letters + 1
    added = added + add(KEYS[2], ARGV[1], ARGV[7], {'mailbox', ARGV[6], 'entry', entry, 'row', '0', 'reason',
                                                    'the mailbox was removed', 'born', born, 'exclusive', '1', 'acked', '',
                                                    'f', ARGV[arg + 1]})
  end
end
if box then store(box) end
if letters > 0 then bound(KEYS[2], ARGV[1], ARGV[7], letters, added) end
return 1
