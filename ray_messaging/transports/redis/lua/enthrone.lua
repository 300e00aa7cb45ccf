-- Raise the interceptor's epoch: what its predecessor passes, or has granted, counts no more.
--
-- KEYS[1] meta  hash: interceptor = the epoch, standing = the number under which standing verdicts count
-- Returns the epoch
local epoch = redis.call('HINCRBY', KEYS[1], 'interceptor', 1)
redis.call('HDEL', KEYS[1], 'standing')
return epoch
