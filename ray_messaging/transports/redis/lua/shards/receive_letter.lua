#!lua
-- Write a dead letter of another shard into a mailbox here, once; or settle that it never will be.
--
-- KEYS[1] meta  hash: directory = version   KEYS[2] state and [3] lease of the mailbox: see take_mailbox.lua
-- KEYS[4] received  hash: <shard>:<mailbox> -> id of the last letter of that shard for the mailbox, a space, and 1 where it was
--         written, 0 where it was given up. It stays, so that a call that comes late finds it: letters come one after another
-- ARGV[1] prefix of this experiment's keys  [2] mailbox  [3] shard of the letter  [4] its id; "": only say whether it fits
-- ARGV[5] directory version; "": give it up  [6...] rows, frame
-- Returns a number of Requeued: 0 it was settled before a later one, 1 done, 2 the directory has changed, 3 the mailbox is full,
-- 4 it would not hold a frame if it were empty, 5 the event log is behind, 6 it was given up
local field = ARGV[3] .. ':' .. ARGV[2]
if ARGV[4] ~= '' then
  local last, written = (redis.call('HGET', KEYS[4], field) or ''):match('^(%S+) (%d)$')
  if last == ARGV[4] then return written == '1' and 1 or 6 end
  if last and lower(last, ARGV[4]) == ARGV[4] then return 0 end
  if ARGV[5] == '' then
    redis.call('HSET', KEYS[4], field, ARGV[4] .. ' 0')
    return 6
  end
end
if (redis.call('HGET', KEYS[1], 'directory') or '0') ~= ARGV[5] then return 2 end
local box = taker_of(KEYS[2], KEYS[3], ARGV[1], ARGV[2])
if not box then return 2 end
for arg = 6, #ARGV, 2 do
  local refused = refusal_of(box, tonumber(ARGV[arg]), #ARGV[arg + 1])
  if refused then return refused end
end
if ARGV[4] == '' then return 1 end
for arg = 6, #ARGV, 2 do give(ARGV[1], box, ARGV[arg], ARGV[arg + 1]) end
keep_counts(box)
redis.call('HSET', KEYS[4], field, ARGV[4] .. ' 1')
return 1
