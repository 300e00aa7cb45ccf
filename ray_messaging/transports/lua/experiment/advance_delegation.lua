#!lua flags=allow-oom
-- Set the number under which delegated rules count, unless a higher one is set: a late attempt must not bring back a
-- revoked delegation. Allowed when memory is full, because delegations must end in time.
--
-- KEYS[1] meta  hash: interceptor = epoch of the one that may write, standing = the number
-- ARGV[1] its epoch  [2] the number; each change of the rules takes a higher one
-- Returns 1, or 0 where another interceptor has taken over
local now = redis.call('HMGET', KEYS[1], 'interceptor', 'standing')
if (now[1] or '0') ~= ARGV[1] then return 0 end
-- As texts: doubles do not hold such numbers.
local before = now[2] or ''
if #before < #ARGV[2] or (#before == #ARGV[2] and before < ARGV[2]) then
  redis.call('HSET', KEYS[1], 'standing', ARGV[2])
end
return 1
