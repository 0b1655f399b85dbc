-- The registry: leases, pins and marks of one context, all in one slot.
--
-- One script, one atomic step, on the server's own clock. Every operation may run any number of times with
-- the same arguments (the client retries by itself) and leave what it leaves the first time: sets keyed by
-- holder, never counters.
--
-- KEYS[1]  sexton:{context}:gen        hash    token, began: the generation
-- Derived from it, in the same slot:
--   :leases         zset    holder -> end of its lease, ms
--   :holder:H       hash    incarnation, operation, digest; beat: the last heartbeat, ms; agreed, agreed_in:
--                           the last one that claimed what is known here, and its generation
--   :held:H         hash    "span@version" -> "cost|since|operation": since when, and by which operation
--   :pins:S@V       hash    holder -> the same
--   :marks          hash    "span@version" -> "generation|at"
--   :changing       hash    token of a command -> "until|span@version span@version": what it is about to change
-- ARGV[1]  the operation; ARGV[2..] its arguments
--
-- `sexton.core.registry` is the same in Python; the contract tests hold the two together.

-- MAX_TTL_MS: no lease is longer, and no message of one counts for longer.
local LONGEST = 300000
-- MAX_HOLDERS: leases on one context.
local HOLDERS = 1024
-- CHANGING_MS: how long a note of a change stands that nobody clears.
local CHANGING = 10000

local base = string.sub(KEYS[1], 1, -4)
local leases, marks, changing = base .. 'leases', base .. 'marks', base .. 'changing'
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)

local function holder_key(h) return base .. 'holder:' .. h end
local function held_key(h) return base .. 'held:' .. h end
local function pins_key(v) return base .. 'pins:' .. v end

-- A server that restarts has another run id; one that takes over has another replication id; one that was
-- emptied has no token. Each begins a generation.
local function generation()
  local info = redis.call('INFO', 'server') .. redis.call('INFO', 'replication')
  local id = string.match(info, 'run_id:(%w+)') .. string.match(info, 'master_replid:(%w+)')
  local known = redis.call('HMGET', KEYS[1], 'id', 'token', 'began')
  if known[1] == id then return known[2], tonumber(known[3]) end
  local token = string.sub(id, 1, 12) .. '-' .. t[1] .. '-' .. t[2]
  redis.call('HSET', KEYS[1], 'id', id, 'token', token, 'began', now)
  return token, now
end

local function drop_pin(h, v)
  redis.call('HDEL', held_key(h), v)
  redis.call('HDEL', pins_key(v), h)
end

local function drop_all(h)
  for _, v in ipairs(redis.call('HKEYS', held_key(h))) do redis.call('HDEL', pins_key(v), h) end
  redis.call('DEL', held_key(h))
end

local function good(h)
  local ends = redis.call('ZSCORE', leases, h)
  return ends and tonumber(ends) > now
end

-- Ends a lease. Its incarnation and last operation are remembered for as long as a message from before may
-- be under way and count: one that is older must not begin the next lease with an older set.
local function end_lease(h)
  drop_all(h)
  redis.call('ZREM', leases, h)
  redis.call('HSET', holder_key(h), 'digest', '')
  redis.call('PEXPIRE', holder_key(h), LONGEST)
end

local function begin_lease(h, incarnation)
  local before = redis.call('HMGET', holder_key(h), 'incarnation', 'operation')
  local same = tonumber(before[1] or '0') == incarnation
  drop_all(h)
  redis.call('ZREM', leases, h)
  redis.call('DEL', holder_key(h))
  return {operation = same and tonumber(before[2]) or 0, digest = ''}
end

-- Leases that have run out, and those that end later than any can: a server whose clock was ahead of this
-- one's has written them. A few at a time, so that no call grows with their number.
local function tidy()
  for _, h in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, 8)) do end_lease(h) end
  local late = '(' .. (now + LONGEST)
  for _, h in ipairs(redis.call('ZRANGEBYSCORE', leases, late, '+inf', 'LIMIT', 0, 8)) do
    redis.call('ZADD', leases, now + LONGEST, h)
  end
end

local function add_pin(h, v, cost, operation)
  local before = redis.call('HGET', held_key(h), v)
  local origin = before and string.match(before, '|(.+)$') or now .. '|' .. operation
  local value = cost .. '|' .. origin
  redis.call('HSET', held_key(h), v, value)
  redis.call('HSET', pins_key(v), h, value)
  redis.call('HDEL', marks, v)
end

-- What every holder operation checks: no newer process of the same id, and a good lease. Gives the holder's
-- record, or nothing and the refusal.
local function lease_of(h, incarnation)
  local known = redis.call('HMGET', holder_key(h), 'incarnation', 'operation', 'digest')
  local newest = tonumber(known[1] or '0')
  if incarnation < newest then return nil, {'fenced', newest} end
  if incarnation > newest or not good(h) then return nil, {'lease_lost', 0} end
  return {operation = tonumber(known[2]), digest = known[3]}
end

-- Takes note of an operation. Its digest covers all of the holder's pins: it is believed only if none of the
-- operations before it is missing, as they are after a fail-over to an older copy.
local function note_operation(h, known, operation, digest)
  if operation == known.operation then return end
  if operation > known.operation + 1 or known.digest == '' then digest = '' end
  redis.call('HSET', holder_key(h), 'operation', operation, 'digest', digest)
end

local function live_pins(v)
  local found = {}
  local all = redis.call('HGETALL', pins_key(v))
  for i = 1, #all, 2 do
    if good(all[i]) then found[#found + 1] = all[i] .. '|' .. all[i + 1] end
  end
  return found
end

-- The notes of changes that stand: token -> versions. Drops those that have run out, and cuts those that a
-- server whose clock was ahead of this one's has written.
local function changes()
  local found, all = {}, redis.call('HGETALL', changing)
  for i = 1, #all, 2 do
    local ends, versions = string.match(all[i + 1], '^(%d+)|(.*)$')
    if tonumber(ends) <= now then
      redis.call('HDEL', changing, all[i])
    else
      if tonumber(ends) > now + CHANGING then
        redis.call('HSET', changing, all[i], (now + CHANGING) .. '|' .. versions)
      end
      found[all[i]] = versions
    end
  end
  return found
end

-- The notes that a grant must wait for, as version, token, version, token. A cheap pin stops no command.
local function in_the_way(a, first)
  local tokens = {}
  for token, versions in pairs(changes()) do
    for v in string.gmatch(versions, '%S+') do
      tokens[v] = tokens[v] or {}
      table.insert(tokens[v], token)
    end
  end
  local found = {}
  for i = first, #a, 2 do
    for _, token in ipairs(a[i + 1] ~= 'cheap' and tokens[a[i]] or {}) do
      found[#found + 1] = a[i]
      found[#found + 1] = token
    end
  end
  return found
end

local ops = {}

-- holder incarnation operation digest ttl register leave announce [version cost]...
function ops.beat(a)
  local h, incarnation, operation, digest = a[2], tonumber(a[3]), tonumber(a[4]), a[5]
  local ttl, register, leave, announce = tonumber(a[6]), a[7] == '1', a[8] == '1', a[9] == '1'
  local token = generation()
  local known, refusal = lease_of(h, incarnation)
  if refusal and refusal[1] == 'fenced' then return refusal end
  if leave then
    if known then
      redis.call('HSET', holder_key(h), 'operation', math.max(operation, known.operation))
      end_lease(h)
    end
    return {'ok', operation, '0', {}}
  end
  if not known then
    if not register then return refusal end
    -- A newer process takes an older one's place.
    if not good(h) and redis.call('ZCOUNT', leases, '(' .. now, '+inf') >= HOLDERS then
      return {'too_many_holders', HOLDERS}
    end
    known = begin_lease(h, incarnation)
  end
  local ends, under_change = tonumber(redis.call('ZSCORE', leases, h) or '0'), {}
  redis.call('ZADD', leases, math.max(ends, now + ttl), h)
  if announce and operation >= known.operation then
    local wanted = {}
    for i = 10, #a, 2 do wanted[a[i]] = a[i + 1] end
    for _, v in ipairs(redis.call('HKEYS', held_key(h))) do
      if not wanted[v] then drop_pin(h, v) end
    end
    for v, cost in pairs(wanted) do add_pin(h, v, cost, operation) end
    known = {operation = operation, digest = digest}
    under_change = in_the_way(a, 10)
  end
  redis.call('HSET', holder_key(h), 'incarnation', incarnation, 'operation', known.operation,
    'digest', known.digest, 'beat', now)
  -- Who claims another set than is known here has not been heard out: a sweep must not count this one.
  local agreed = known.digest == digest
  if agreed then redis.call('HSET', holder_key(h), 'agreed', now, 'agreed_in', token) end
  tidy()
  return {'ok', known.operation, agreed and '0' or '1', under_change}
end

-- holder incarnation operation digest limit [version cost]...
function ops.pin(a)
  local h, incarnation, operation, digest, limit = a[2], tonumber(a[3]), tonumber(a[4]), a[5], tonumber(a[6])
  generation()
  local known, refusal = lease_of(h, incarnation)
  if not known then return refusal end
  if operation < known.operation then return {'older', known.operation, {}} end
  local fresh, seen = 0, {}
  for i = 7, #a, 2 do
    if not seen[a[i]] and redis.call('HEXISTS', held_key(h), a[i]) == 0 then fresh = fresh + 1 end
    seen[a[i]] = true
  end
  if redis.call('HLEN', held_key(h)) + fresh > limit then return {'too_many', limit} end
  for i = 7, #a, 2 do add_pin(h, a[i], a[i + 1], operation) end
  note_operation(h, known, operation, digest)
  return {'ok', operation, in_the_way(a, 7)}
end

-- holder incarnation operation digest [version]...
function ops.release(a)
  local h, incarnation, operation, digest = a[2], tonumber(a[3]), tonumber(a[4]), a[5]
  generation()
  local known, refusal = lease_of(h, incarnation)
  if not known then return refusal end
  if operation < known.operation then return {'older', known.operation} end
  for i = 6, #a do drop_pin(h, a[i]) end
  note_operation(h, known, operation, digest)
  return {'ok', operation}
end

-- holder incarnation operation [version]...: pins that the log has refused. Only what this operation added is
-- dropped: the answer may be lost, and the holder go on to count on what it was granted before. The digest is
-- forgotten, so that the holder's next heartbeat announces what it holds.
function ops.withdraw(a)
  local h, incarnation, operation = a[2], tonumber(a[3]), tonumber(a[4])
  local known = redis.call('HMGET', holder_key(h), 'incarnation', 'operation')
  if tonumber(known[1] or '0') ~= incarnation or tonumber(known[2]) ~= operation then return {'older', 0} end
  for i = 5, #a do
    local value = redis.call('HGET', held_key(h), a[i])
    if value and tonumber(string.match(value, '|(%d+)$')) == operation then drop_pin(h, a[i]) end
  end
  redis.call('HSET', holder_key(h), 'digest', '')
  return {'ok', operation}
end

-- token [version]...: live pins on each; with a token, also the note that they are about to change. In one
-- script: a pin that is registered before is found here, and one that is registered after finds the note.
function ops.pins(a)
  local _, began = generation()
  if a[2] ~= '' then
    redis.call('HSET', changing, a[2], (now + CHANGING) .. '|' .. table.concat(a, ' ', 3))
    redis.call('PEXPIRE', changing, CHANGING)
  end
  local found = {}
  for i = 3, #a do found[#found + 1] = live_pins(a[i]) end
  return {now, began, found}
end

-- token: the command is through, whatever came of it
function ops.changed(a)
  redis.call('HDEL', changing, a[2])
  return {'ok'}
end

-- [token]...: those that still stand
function ops.standing(a)
  local stand, found = changes(), {}
  for i = 2, #a do
    if stand[a[i]] then found[#found + 1] = a[i] end
  end
  return found
end

-- mark? [version]...: what a sweep looks at; with mark '1', unpinned versions without a mark get one
function ops.observe(a)
  local token, began = generation()
  tidy()
  local oldest = -1
  for _, h in ipairs(redis.call('ZRANGEBYSCORE', leases, '(' .. now, '+inf')) do
    local known = redis.call('HMGET', holder_key(h), 'agreed', 'agreed_in')
    local agreed = known[2] == token and tonumber(known[1]) or 0
    if oldest < 0 or agreed < oldest then oldest = agreed end
  end
  local found, noted = {}, {}
  for i = 3, #a do
    local v = a[i]
    local pins = live_pins(v)
    local mark = redis.call('HGET', marks, v) or ''
    if a[2] == '1' and #pins == 0 and string.sub(mark, 1, #token + 1) ~= token .. '|' then
      mark = token .. '|' .. now
      redis.call('HSET', marks, v, mark)
    end
    found[#found + 1] = pins
    noted[#noted + 1] = mark
  end
  return {token, began, now, oldest, found, noted}
end

-- nothing: the token of the generation
function ops.generation(_)
  return {(generation())}
end

-- token: the log had no record of this context at some moment in the generation of that token, so no pin can
-- be older than it, and the registry has been whole for as long as there was anything to pin
function ops.born(a)
  local token = generation()
  if token == a[2] then redis.call('HSET', KEYS[1], 'began', 0) end
  return {'ok'}
end

-- [version]...: forget the marks of versions that are collected
function ops.unmark(a)
  for i = 2, #a do redis.call('HDEL', marks, a[i]) end
  return {'ok'}
end

-- nothing: all holders; of each, last, how long ago it agreed with this generation, -1 if it never has
function ops.holders(_)
  local found, token = {}, generation()
  for _, h in ipairs(redis.call('ZRANGE', leases, 0, -1)) do
    local known = redis.call('HMGET', holder_key(h), 'incarnation', 'beat', 'agreed', 'agreed_in')
    local agreed = known[4] == token and tonumber(known[3])
    found[#found + 1] = {h, known[1] or '0', tostring(tonumber(redis.call('ZSCORE', leases, h)) - now),
      tostring(now - tonumber(known[2] or now)), tostring(redis.call('HLEN', held_key(h))),
      agreed and tostring(math.max(0, now - agreed)) or '-1'}
  end
  return found
end

-- nothing: all live pins
function ops.held(_)
  local found = {}
  for _, h in ipairs(redis.call('ZRANGEBYSCORE', leases, '(' .. now, '+inf')) do
    local all = redis.call('HGETALL', held_key(h))
    for i = 1, #all, 2 do found[#found + 1] = {h, all[i], all[i + 1], tostring(now)} end
  end
  return found
end

return ops[ARGV[1]](ARGV)
