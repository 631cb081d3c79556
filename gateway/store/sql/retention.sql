-- What goes when its time is over, and how things stand. Parameters and comments as in queries.sql.

-- name: expire_runs
-- Runs that waited too long: checkpoints and questions go with them, in one statement, a batch at a time.
-- SKIP LOCKED leaves alone what an answer or another replica holds. A run with a default decision to be given
-- is left to those who can resume it.
-- ARRAY keeps the planner at the indexes; for IN (SELECT …) it reads whole tables (measured).
WITH due AS (
    SELECT id, tenant, status, response_id FROM fermata.runs
     WHERE status IN ('waiting', 'stalled') AND expires_at <= now()
       AND NOT EXISTS (SELECT 1 FROM fermata.interrupts i
                        WHERE i.run_id = runs.id AND i.status = 'pending' AND i.has_default
                          AND i.expires_at <= now())
     ORDER BY expires_at LIMIT %(batch)s FOR UPDATE SKIP LOCKED
), closed AS (
    UPDATE fermata.interrupts SET status = 'expired'
     WHERE run_id = ANY (ARRAY(SELECT id FROM due)) AND status = 'pending'
), writes AS (
    DELETE FROM checkpoint_writes WHERE thread_id = ANY (ARRAY(SELECT id FROM due))
), blobs AS (
    DELETE FROM checkpoint_blobs WHERE thread_id = ANY (ARRAY(SELECT id FROM due))
), checkpoints AS (
    DELETE FROM checkpoints WHERE thread_id = ANY (ARRAY(SELECT id FROM due))
), recorded AS (
    INSERT INTO fermata.audit (tenant, run_id, event, response_id, actor, details)
    SELECT tenant, id, 'expired', response_id, 'system:expiry',
           json_build_object('was', status, 'open', ARRAY(SELECT i.call_id FROM fermata.interrupts i
                                                           WHERE i.run_id = due.id AND i.status = 'pending'
                                                           ORDER BY i.created_at, i.position))
      FROM due
)
UPDATE fermata.runs SET status = 'expired', changed_at = now(), expires_at = now() + %(retention)s
 WHERE id = ANY (ARRAY(SELECT id FROM due));

-- name: delete_responses
DELETE FROM fermata.responses
 WHERE id = ANY (ARRAY(SELECT id FROM fermata.responses WHERE expires_at <= now()
                              ORDER BY expires_at LIMIT %(batch)s FOR UPDATE SKIP LOCKED));

-- name: delete_runs
-- Ended runs; their interrupts go by the foreign key.
DELETE FROM fermata.runs
 WHERE id = ANY (ARRAY(SELECT id FROM fermata.runs
                              WHERE status IN ('completed', 'failed', 'cancelled', 'expired') AND expires_at <= now()
                              ORDER BY expires_at LIMIT %(batch)s FOR UPDATE SKIP LOCKED));

-- name: standing
-- What is open, for /metrics: counted through the partial indexes of what is open, so that it costs what is open and
-- not what is kept. Of all tenants: the route takes a role of its own.
SELECT 'runs' AS what, 'waiting' AS status, (SELECT count(*) FROM fermata.runs WHERE status = 'waiting') AS count
UNION ALL
SELECT 'runs', 'stalled', (SELECT count(*) FROM fermata.runs WHERE status = 'stalled')
UNION ALL
SELECT 'responses', 'queued', (SELECT count(*) FROM fermata.responses WHERE status = 'queued')
UNION ALL
SELECT 'responses', 'in_progress', (SELECT count(*) FROM fermata.responses WHERE status = 'in_progress')
UNION ALL
SELECT 'questions', 'pending', (SELECT count(*) FROM fermata.interrupts WHERE status = 'pending');

-- name: trim_events
-- The log of responses that ended long enough ago; the response itself stays for its own retention.
WITH due AS (
    SELECT id FROM fermata.responses
     WHERE logged AND completed_at <= now() - %(retention)s
     ORDER BY completed_at LIMIT %(batch)s FOR UPDATE SKIP LOCKED
), trimmed AS (
    DELETE FROM fermata.events WHERE response_id = ANY (ARRAY(SELECT id FROM due))
)
UPDATE fermata.responses SET logged = false WHERE id = ANY (ARRAY(SELECT id FROM due));

-- name: delete_keys
DELETE FROM fermata.idempotency_keys
 WHERE (tenant, key) = ANY (ARRAY(SELECT (tenant, key) FROM fermata.idempotency_keys WHERE expires_at <= now()
                                   ORDER BY expires_at LIMIT %(batch)s FOR UPDATE SKIP LOCKED));
