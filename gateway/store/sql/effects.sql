-- The ledger of effects. Parameters and comments as in queries.sql.

-- name: claim_effect
-- Looking first and claiming then would be a race between two workers, so the claim is one statement. Fenced by the
-- lease that allows this process to move the run. An existing row is taken only where its outcome is uncertain (its
-- claimer said so, or is dead by its sign of life), for the same arguments, and if the caller can deal with it.
-- Taken or not, the row stays locked for `effect`, which reads it next.
WITH fence AS (
    SELECT id FROM fermata.leases
     WHERE id = %(lease_id)s AND expires_at > now() AND (token = %(token)s OR %(token)s::bigint IS NULL)
), claimed AS (
    INSERT INTO fermata.effects AS e (tenant, key, fingerprint, arguments, status, owner, run_id, response_id)
    SELECT %(tenant)s, %(key)s, %(fingerprint)s, %(arguments)s::json, 'claimed', %(owner)s, %(run_id)s,
           %(response_id)s
      FROM fence
    ON CONFLICT (tenant, key) DO UPDATE
       SET status = 'claimed', claim = nextval('fermata.effect_claim'), attempts = e.attempts + 1,
           owner = excluded.owner, run_id = excluded.run_id, response_id = excluded.response_id, claimed_at = now()
     WHERE %(take)s AND e.fingerprint = excluded.fingerprint
       AND (e.status = 'uncertain'
            OR e.status = 'claimed' AND NOT EXISTS (SELECT FROM fermata.leases l
                                                     WHERE l.id = e.owner AND l.expires_at > now()))
    RETURNING claim, attempts
)
SELECT (SELECT count(*) FROM fence) AS fenced, (SELECT claim FROM claimed) AS claim,
       (SELECT attempts FROM claimed) AS attempts;

-- name: effect
SELECT e.key, e.fingerprint, e.status, e.claim, e.attempts, e.run_id, e.response_id, e.owner,
       e.arguments::text AS arguments, e.result::text AS result, e.failure::text AS failure, e.claimed_at, e.settled_at,
       EXISTS (SELECT FROM fermata.leases l WHERE l.id = e.owner AND l.expires_at > now()) AS alive
  FROM fermata.effects e
 WHERE e.tenant = %(tenant)s AND e.key = %(key)s;

-- name: settle_effect
-- Fenced by the number of the claim. A process that was taken for dead and lives after all may still say what
-- became of it, as long as nobody else has claimed it.
UPDATE fermata.effects
   SET status = %(status)s, result = %(result)s::json, failure = %(failure)s::json,
       settled_at = CASE WHEN %(status)s IN ('done', 'failed') THEN now() END
 WHERE tenant = %(tenant)s AND key = %(key)s AND claim = %(claim)s AND status IN ('claimed', 'uncertain')
RETURNING key;

-- name: release_effect
-- It did not happen: the key is free again.
DELETE FROM fermata.effects
 WHERE tenant = %(tenant)s AND key = %(key)s AND claim = %(claim)s AND status IN ('claimed', 'uncertain')
RETURNING key;

-- name: decisions_of_run
-- What people answered in a run, as it was asked and as it was stored before the graph was resumed.
SELECT name, question::text AS question, answer::text AS answer
  FROM fermata.interrupts
 WHERE tenant = %(tenant)s AND run_id = %(run_id)s AND status = 'answered'
 ORDER BY created_at, position;

-- ---------------------------------------------------------------- for operators, who see all tenants

-- name: unsettled_effects
-- What was begun and never recorded, oldest first: uncertain, unless its claimer is alive.
SELECT e.tenant, e.key, e.status, e.attempts, e.run_id, e.claimed_at,
       EXISTS (SELECT FROM fermata.leases l WHERE l.id = e.owner AND l.expires_at > now()) AS alive
  FROM fermata.effects e
 WHERE e.status IN ('claimed', 'uncertain') AND (e.tenant = %(tenant)s OR %(tenant)s::text IS NULL)
 ORDER BY e.claimed_at
 LIMIT %(limit)s;

-- name: latest_effects
-- What is settled, newest first.
SELECT e.tenant, e.key, e.status, e.attempts, e.run_id, e.settled_at AS claimed_at, false AS alive
  FROM fermata.effects e
 WHERE e.settled_at IS NOT NULL AND (e.tenant = %(tenant)s OR %(tenant)s::text IS NULL)
 ORDER BY e.settled_at DESC
 LIMIT %(limit)s;

-- name: tenants_of_effect
SELECT tenant FROM fermata.effects WHERE key = %(key)s ORDER BY tenant LIMIT 20;

-- name: resolve_effect
-- An operator's word on what nobody knows, or on a recorded failure. Not on what a living process is at, nor on what
-- is done. A new claim number fences off a claimer who comes back to life.
UPDATE fermata.effects AS e
   SET status = 'done', result = %(result)s::json, failure = NULL, settled_at = now(),
       claim = nextval('fermata.effect_claim')
 WHERE e.tenant = %(tenant)s AND e.key = %(key)s
   AND (e.status IN ('uncertain', 'failed')
        OR e.status = 'claimed' AND NOT EXISTS (SELECT FROM fermata.leases l
                                                 WHERE l.id = e.owner AND l.expires_at > now()))
RETURNING e.run_id, e.response_id, e.arguments::text AS arguments;

-- name: free_effect
-- As resolve_effect: it did not happen, and may be tried again.
DELETE FROM fermata.effects AS e
 WHERE e.tenant = %(tenant)s AND e.key = %(key)s
   AND (e.status IN ('uncertain', 'failed')
        OR e.status = 'claimed' AND NOT EXISTS (SELECT FROM fermata.leases l
                                                 WHERE l.id = e.owner AND l.expires_at > now()))
RETURNING e.run_id, e.response_id, e.arguments::text AS arguments;

-- name: delete_effects
-- Only where a retention is set: a key that is gone can be claimed again. By place: the rows are locked, so they
-- stay where they are, and a pair of keys in an IN has the planner read the whole table.
DELETE FROM fermata.effects
 WHERE ctid = ANY (ARRAY(SELECT ctid FROM fermata.effects
                          WHERE settled_at <= now() - %(retention)s::interval
                          ORDER BY settled_at LIMIT %(batch)s FOR UPDATE SKIP LOCKED));
