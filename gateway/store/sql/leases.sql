-- Who may move a run, and what a dead process left. Parameters and comments as in queries.sql.

-- name: acquire_lease
-- Only over nobody or over the dead. Expiry is on the database's clock. An inserted row has no xmax: nobody had the
-- lease, or its holder took it down in order.
INSERT INTO fermata.leases (id, owner, expires_at)
VALUES (%(id)s, %(owner)s, now() + %(ttl)s)
ON CONFLICT (id) DO UPDATE
   SET owner = excluded.owner, token = nextval('fermata.lease_token'), expires_at = excluded.expires_at
 WHERE leases.expires_at <= now()
RETURNING token, xmax <> 0 AS inherited;

-- name: sign_of_life
-- A process's own lease: nobody else ever takes it, so it is renewed whatever its state.
INSERT INTO fermata.leases (id, owner, expires_at)
VALUES (%(owner)s, %(owner)s, now() + %(ttl)s)
ON CONFLICT (id) DO UPDATE SET expires_at = excluded.expires_at;

-- name: beat
-- All leases of a process in one statement. What does not come back is lost.
UPDATE fermata.leases AS l
   SET expires_at = now() + %(ttl)s
  FROM unnest(%(ids)b::text[], %(tokens)s::bigint[]) AS held (id, token)
 WHERE l.id = held.id AND l.token = held.token
RETURNING l.id;

-- name: release_owner
-- A process that ends in order takes its sign of life down, so that nobody waits for its TTL.
DELETE FROM fermata.leases WHERE id = %(owner)s OR owner = %(owner)s;

-- name: clear_leases
-- Leases that ended long ago, of processes that died. A token that finds no row is as stale as an old one.
DELETE FROM fermata.leases
 WHERE id IN (SELECT id FROM fermata.leases WHERE expires_at < now() - interval '5 minutes'
               LIMIT 500 FOR UPDATE SKIP LOCKED);

-- ---------------------------------------------------------------- recovery

-- name: disown
-- First requests that a living process could not end: no lease has this id, so they are orphans from now on.
UPDATE fermata.responses SET lease_id = 'abandoned'
 WHERE id = ANY(%(ids)b::text[]) AND status = 'in_progress' AND NOT resumes;

-- name: forget_unbegun
-- First requests whose opening was committed although this process never heard of it: nothing was run, no id was
-- told. Their keys go with them.
DELETE FROM fermata.responses
 WHERE id = ANY(%(ids)b::text[]) AND status = 'in_progress' AND lease_id = %(lease_id)s AND NOT resumes;

-- name: orphans
-- Responses in progress whose lease is gone or over: their holder died. Partial index, so this costs what is
-- running, not what is stored.
-- Not those that only a process with the graph can take over, nor what could not be recovered a moment ago.
SELECT r.id, r.tenant, r.run_id, r.resumes
  FROM fermata.responses r
 WHERE r.status = 'in_progress'
   AND NOT EXISTS (SELECT 1 FROM fermata.leases l WHERE l.id = r.lease_id AND l.expires_at > now())
   AND (NOT r.resumes OR r.model = ANY(%(models)b::text[]))
   AND r.id <> ALL(%(skipped)b::text[])
 ORDER BY r.id
 LIMIT %(limit)s;

-- name: accepted_answers
-- What a response that died was carrying: the answers as they were stored before the graph was resumed.
SELECT interrupt_id, answer::text AS answer
  FROM fermata.interrupts
 WHERE run_id = %(run_id)s AND answered_by = %(response_id)s
 ORDER BY position;

-- name: due_defaults
-- Questions whose time is over and whose author said what silence means; limits as in orphans.
SELECT i.call_id, i.tenant
  FROM fermata.runs r JOIN fermata.interrupts i ON i.run_id = r.id
 WHERE r.status = 'waiting' AND r.expires_at <= now()
   AND i.status = 'pending' AND i.has_default AND i.expires_at <= now()
   AND r.model = ANY(%(models)b::text[])
   AND i.call_id <> ALL(%(skipped)b::text[])
 ORDER BY r.expires_at, i.position
 LIMIT %(limit)s;

-- name: count_takeover
-- In the transaction that takes the lease: what ends its process is not taken over for ever. A holder that ended in
-- order (`died` is false) does not count.
WITH counted AS (
    UPDATE fermata.responses SET takeovers = takeovers + %(died)s::boolean::integer WHERE id = %(id)s RETURNING id, tenant, run_id, takeovers
)
INSERT INTO fermata.audit (tenant, run_id, event, response_id, actor, details)
SELECT tenant, run_id, 'taken_over', id, 'system:recovery', json_build_object('takeovers', takeovers) FROM counted;

-- name: fail_orphan
-- A first request died with its process. The lease is looked at again: the process may have woken up.
-- A run that only talked so far has no audit, and gets none.
WITH failed AS (
    UPDATE fermata.responses r
       SET status = 'failed', body = %(body)s, completed_at = now(), lease_id = NULL, expires_at = now() + %(retention)s
     WHERE r.id = %(id)s AND r.status = 'in_progress' AND NOT r.resumes
       AND NOT EXISTS (SELECT 1 FROM fermata.leases l WHERE l.id = r.lease_id AND l.expires_at > now())
    RETURNING r.id, r.tenant, r.run_id
), recorded AS (
    INSERT INTO fermata.audit (tenant, run_id, event, response_id, actor, details)
    SELECT tenant, run_id, 'failed', id, 'system:recovery', %(details)s::json
      FROM failed WHERE EXISTS (SELECT 1 FROM fermata.audit a WHERE a.run_id = failed.run_id)
)
SELECT id FROM failed;
