-- Background responses. Parameters and comments as in queries.sql.

-- ---------------------------------------------------------------- the queue

-- name: queue_first
-- Accepted: the run, its response and the first events are on record before the client is told.
WITH run AS (
    INSERT INTO fermata.runs (id, tenant, requester, model, status, response_id, settings)
    VALUES (%(run_id)s, %(tenant)s, %(requester)s, %(model)s, 'running', %(id)s, %(settings)s::json)
), response AS (
    INSERT INTO fermata.responses
           (id, tenant, run_id, model, previous_id, conversation_id, status, stored, resumes, logged, streamed, input,
            body)
    VALUES (%(id)s, %(tenant)s, %(run_id)s, %(model)s, %(previous_id)s, %(conversation_id)s, 'queued', true, true, true,
            %(streamed)s, %(input)s::json, %(body)s::json)
)
INSERT INTO fermata.events (response_id, first, last, frames)
VALUES (%(id)s, 0, %(last)s, %(frames)s);

-- name: queue_resumed
-- After accept_answers, in its transaction: the answers are taken, and whoever is free resumes the run.
WITH lease AS (
    DELETE FROM fermata.leases WHERE id = %(run_id)s AND token = %(token)s
), response AS (
    UPDATE fermata.responses
       SET status = 'queued', lease_id = NULL, logged = true, streamed = %(streamed)s
     WHERE tenant = %(tenant)s AND id = %(id)s
)
INSERT INTO fermata.events (response_id, first, last, frames)
VALUES (%(id)s, 0, %(last)s, %(frames)s);

-- name: claim_queued
-- The oldest queued response of a model that is served here, and the lease of its run, in one statement: two
-- claimers skip each other's row, and a claim is a lease like any other. `skipped` are those that could not be
-- started just now: none may stand in the way of all that come after it.
WITH next AS (
    SELECT id, run_id, tenant FROM fermata.responses
     WHERE status = 'queued' AND model = ANY(%(models)s) AND NOT id = ANY(%(skipped)b::text[])
     ORDER BY created_at LIMIT 1 FOR UPDATE SKIP LOCKED
), lease AS (
    INSERT INTO fermata.leases (id, owner, expires_at)
    SELECT run_id, %(owner)s, now() + %(ttl)s FROM next
    ON CONFLICT (id) DO UPDATE
       SET owner = excluded.owner, token = nextval('fermata.lease_token'), expires_at = excluded.expires_at
     WHERE leases.expires_at <= now()
    RETURNING id, token
), started AS (
    UPDATE fermata.responses SET status = 'in_progress', lease_id = run_id
     WHERE id = (SELECT next.id FROM next JOIN lease ON lease.id = next.run_id)
    RETURNING id
)
SELECT next.id, next.run_id, next.tenant, lease.token
  FROM next JOIN lease ON lease.id = next.run_id JOIN started ON started.id = next.id;

-- name: run_of
-- The run behind a response, without its lock: whoever claimed the response has its lease.
SELECT id, requester, model, status, response_id, settings::text AS settings
  FROM fermata.runs
 WHERE tenant = %(tenant)s AND id = %(run_id)s;

-- name: request_of
-- What a response was asked with, for whoever starts it, takes it over or follows it.
SELECT id, previous_id, conversation_id, input::text AS input, body::text AS body, stored, logged, streamed, settled, cancelling,
       takeovers, status
  FROM fermata.responses
 WHERE tenant = %(tenant)s AND id = %(id)s AND (expires_at IS NULL OR expires_at > now());

-- name: show_started
-- In the transaction of its claim.
UPDATE fermata.responses SET body = %(body)s::json WHERE tenant = %(tenant)s AND id = %(id)s;

-- ---------------------------------------------------------------- what was told, and how far it came

-- name: hold
-- The fence of everything that a holder records on its way. FOR SHARE: a takeover waits for this transaction, or
-- was before it.
SELECT id FROM fermata.leases WHERE id = %(run_id)s AND token = %(token)s FOR SHARE;

-- name: append_events
-- Fenced like `hold`; alone it is a transaction of its own. A commit whose answer was lost is tried again, with more
-- frames perhaps: what was told is a beginning of them.
INSERT INTO fermata.events (response_id, first, last, frames)
SELECT %(id)s, %(first)s, %(last)s, %(frames)s
  FROM (SELECT id FROM fermata.leases WHERE id = %(run_id)s AND token = %(token)s FOR SHARE) AS fence
ON CONFLICT (response_id, first) DO UPDATE SET last = excluded.last, frames = excluded.frames;

-- name: settle
-- With the checkpoint of a finished step: what was told up to here will not be told again.
UPDATE fermata.responses SET settled = %(settled)s WHERE tenant = %(tenant)s AND id = %(id)s;

-- name: prune_checkpoints
-- A run goes on from the newest checkpoint of each namespace; older ones would only grow with its steps.
WITH newest AS (
    SELECT checkpoint_ns, max(checkpoint_id) AS id FROM checkpoints WHERE thread_id = %(run_id)s GROUP BY checkpoint_ns
), writes AS (
    DELETE FROM checkpoint_writes w USING newest n
     WHERE w.thread_id = %(run_id)s AND w.checkpoint_ns = n.checkpoint_ns AND w.checkpoint_id < n.id
), blobs AS (
    DELETE FROM checkpoint_blobs b USING newest n, checkpoints c
     WHERE b.thread_id = %(run_id)s AND b.checkpoint_ns = n.checkpoint_ns
       AND c.thread_id = %(run_id)s AND c.checkpoint_ns = n.checkpoint_ns AND c.checkpoint_id = n.id
       AND (c.checkpoint -> 'channel_versions' ->> b.channel = b.version) IS NOT TRUE
)
DELETE FROM checkpoints c USING newest n
 WHERE c.thread_id = %(run_id)s AND c.checkpoint_ns = n.checkpoint_ns AND c.checkpoint_id < n.id;

-- name: events_after
-- What a follower has not seen, from the chunk on that holds its next event. A hundred chunks: a long log is not
-- read at once.
SELECT e.first, e.last, e.frames
  FROM fermata.events e JOIN fermata.responses r ON r.id = e.response_id
 WHERE r.tenant = %(tenant)s AND e.response_id = %(id)s AND e.last > %(after)s
   AND e.first >= coalesce((SELECT max(b.first) FROM fermata.events b
                             WHERE b.response_id = %(id)s AND b.first <= %(after)s + 1), 0)
 ORDER BY e.first
 LIMIT 100;

-- name: all_events
-- What a holder that died had told.
SELECT e.frames
  FROM fermata.events e JOIN fermata.responses r ON r.id = e.response_id
 WHERE r.tenant = %(tenant)s AND e.response_id = %(id)s
 ORDER BY e.first;

-- name: have_news
-- One query a round for all followers on this process: which of these have events that were not seen, or ended.
SELECT followed.id
  FROM unnest(%(ids)b::text[], %(seen)s::integer[]) AS followed (id, seen)
 WHERE (SELECT e.last FROM fermata.events e WHERE e.response_id = followed.id ORDER BY e.first DESC LIMIT 1)
       > followed.seen
    OR NOT EXISTS (SELECT 1 FROM fermata.responses r
                    WHERE r.id = followed.id AND r.status IN ('queued', 'in_progress'));

-- ---------------------------------------------------------------- cancelling

-- name: ask_to_cancel
-- Its holder, wherever that is, looks for this; so does whoever takes it over.
WITH asked AS (
    UPDATE fermata.responses SET cancelling = true
     WHERE tenant = %(tenant)s AND id = %(id)s AND status = 'in_progress' AND logged AND NOT cancelling
    RETURNING id, tenant, run_id
)
INSERT INTO fermata.audit (tenant, run_id, event, response_id, actor, details)
SELECT tenant, run_id, 'cancel_requested', id, %(actor)s, '{}' FROM asked;

-- name: to_be_cancelled
-- Which of these, that this process moves, somebody wants to end.
SELECT id FROM fermata.responses WHERE id = ANY(%(ids)b::text[]) AND cancelling;

-- name: cancel_queued
-- Nobody has started it: it ends here. The caller holds the run's row; a claim that was faster leaves no row.
WITH response AS (
    UPDATE fermata.responses
       SET status = 'cancelled', body = %(body)s::json, completed_at = now(), expires_at = now() + %(retention)s
     WHERE tenant = %(tenant)s AND id = %(id)s AND status = 'queued'
    RETURNING id, run_id
), run AS (
    UPDATE fermata.runs SET status = 'cancelled', changed_at = now(), expires_at = now() + %(retention)s
     WHERE id = (SELECT run_id FROM response)
), told AS (
    INSERT INTO fermata.events (response_id, first, last, frames)
    SELECT id, %(first)s, %(last)s, %(frames)s FROM response
), recorded AS (
    INSERT INTO fermata.audit (tenant, run_id, event, response_id, actor, details)
    SELECT %(tenant)s, run_id, 'cancelled', id, %(actor)s, '{}' FROM response
), writes AS (
    DELETE FROM checkpoint_writes WHERE thread_id = (SELECT run_id FROM response)
), blobs AS (
    DELETE FROM checkpoint_blobs WHERE thread_id = (SELECT run_id FROM response)
), checkpoints AS (
    DELETE FROM checkpoints WHERE thread_id = (SELECT run_id FROM response)
)
SELECT id FROM response;

-- ---------------------------------------------------------------- Idempotency-Key

-- name: remember_key
-- In the transaction of the response's row. No row back: somebody else has the key, and is committed.
INSERT INTO fermata.idempotency_keys (tenant, key, fingerprint, response_id, expires_at)
VALUES (%(tenant)s, %(key)s, %(fingerprint)s, %(response_id)s, now() + %(keep)s)
ON CONFLICT (tenant, key) DO NOTHING
RETURNING key;

-- name: known_key
SELECT fingerprint, response_id FROM fermata.idempotency_keys
 WHERE tenant = %(tenant)s AND key = %(key)s AND expires_at > now();

-- name: free_key
-- A key whose time is over may be used again, swept or not.
DELETE FROM fermata.idempotency_keys WHERE tenant = %(tenant)s AND key = %(key)s AND expires_at <= now();
