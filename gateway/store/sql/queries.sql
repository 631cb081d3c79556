-- Every statement of the gateway. Parameters are %(named)s. Each is EXPLAINed in a test.
-- Arrays of text go in binary (%(name)b): as text, psycopg escapes them with a regular expression.
-- Every statement that reads or writes what belongs to somebody names the tenant.

-- ---------------------------------------------------------------- transactions

-- name: bound_transaction
-- A process that is stopped in the middle of a transaction keeps its locks: nobody could take its run over. LOCAL,
-- since a session behind a transaction-mode pooler is everybody's, and since a graph's own statement (an index build)
-- may take long. Before PostgreSQL 17 there is only the idle timeout, which does not run while a pipeline waits for
-- its next statement.
SELECT CASE WHEN current_setting('server_version_num')::integer >= 170000
            THEN set_config('transaction_timeout', %(patience)s, true)
            ELSE set_config('idle_in_transaction_session_timeout', %(patience)s, true) END;

-- ---------------------------------------------------------------- first requests

-- name: open_first
-- First requests conflict with nobody: their ids are new. They take no lease of their own; `lease_id` names the
-- process, whose sign of life keeps all its first requests alive. Losing these rows in a crash of PostgreSQL
-- loses runs that died with it, so the statement's own transaction commits asynchronously.
INSERT INTO fermata.responses
       (id, tenant, run_id, model, previous_id, status, stored, lease_id, input, body, created_at)
SELECT id, tenant, run_id, model, previous_id, 'in_progress', stored, %(lease_id)s, input::json, body::json, now() - age
  FROM unnest(%(ids)b::text[], %(tenants)b::text[], %(run_ids)b::text[], %(models)b::text[],
              %(previous_ids)b::text[], %(stored)s::boolean[], %(inputs)b::text[], %(bodies)b::text[],
              %(ages)s::interval[])
       AS batch (id, tenant, run_id, model, previous_id, stored, input, body, age),
       (SELECT set_config('synchronous_commit', 'off', true)) AS unhurried;

-- name: open_late
-- The row of a first request that nobody could ask for so far, in the transaction that needs it; it may have been
-- opened by one whose commit was not heard of.
INSERT INTO fermata.responses
       (id, tenant, run_id, model, previous_id, status, stored, lease_id, input, body, created_at)
SELECT id, tenant, run_id, model, previous_id, 'in_progress', stored, %(lease_id)s, input::json, body::json, now() - age
  FROM unnest(%(ids)b::text[], %(tenants)b::text[], %(run_ids)b::text[], %(models)b::text[],
              %(previous_ids)b::text[], %(stored)s::boolean[], %(inputs)b::text[], %(bodies)b::text[],
              %(ages)s::interval[])
       AS batch (id, tenant, run_id, model, previous_id, stored, input, body, age)
    ON CONFLICT (id) DO NOTHING;

-- name: arrive
-- A first request whose response nobody could ask for before it ended: one row, once. If it was opened after all,
-- it is ended, fenced like finish_first.
INSERT INTO fermata.responses AS r
       (id, tenant, run_id, model, previous_id, status, stored, input, body, created_at, completed_at, expires_at)
SELECT id, tenant, run_id, model, previous_id, status, stored, input::json, body::json, now() - age, now(), now() + keep
  FROM unnest(%(ids)b::text[], %(tenants)b::text[], %(run_ids)b::text[], %(models)b::text[],
              %(previous_ids)b::text[], %(stored)s::boolean[], %(inputs)b::text[], %(bodies)b::text[],
              %(ages)s::interval[], %(statuses)b::text[], %(keeps)s::interval[])
       AS batch (id, tenant, run_id, model, previous_id, stored, input, body, age, status, keep)
    ON CONFLICT (id) DO UPDATE
   SET status = excluded.status, body = excluded.body, completed_at = now(), lease_id = NULL,
       expires_at = excluded.expires_at
 WHERE r.status = 'in_progress' AND r.lease_id = %(lease_id)s
RETURNING r.id;

-- name: finish_first
-- Fenced by status and lease: recovery may have failed a response while this process was stopped.
UPDATE fermata.responses AS r
   SET status = batch.status, body = batch.body::json, completed_at = now(), lease_id = NULL,
       expires_at = now() + batch.keep
  FROM unnest(%(ids)b::text[], %(statuses)b::text[], %(bodies)b::text[], %(keeps)s::interval[])
       AS batch (id, status, body, keep)
 WHERE r.id = batch.id AND r.status = 'in_progress' AND r.lease_id = %(lease_id)s
RETURNING r.id;

-- name: forget_first
-- `store: false` and nothing to ask: nothing stays behind. Fenced like finish_first.
DELETE FROM fermata.responses
 WHERE id = %(id)s AND status = 'in_progress' AND lease_id = %(lease_id)s
RETURNING id;

-- name: finish_acted
-- As finish_first, for a run that may have done effects: if it is in the audit, so is its end.
WITH finished AS (
    UPDATE fermata.responses
       SET status = %(status)s, body = %(body)s::json, completed_at = now(), lease_id = NULL,
           expires_at = now() + %(keep)s
     WHERE id = %(id)s AND status = 'in_progress' AND lease_id = %(lease_id)s
    RETURNING id, tenant, run_id
), recorded AS (
    INSERT INTO fermata.audit (tenant, run_id, event, response_id, actor, details)
    SELECT tenant, run_id, %(event)s, id, %(actor)s, %(details)s::json
      FROM finished WHERE EXISTS (SELECT 1 FROM fermata.audit a WHERE a.run_id = finished.run_id)
)
SELECT id FROM finished;

-- name: forget_acted
-- As forget_first, for a run that may have done effects.
WITH gone AS (
    DELETE FROM fermata.responses
     WHERE id = %(id)s AND status = 'in_progress' AND lease_id = %(lease_id)s
    RETURNING id, tenant, run_id
), recorded AS (
    INSERT INTO fermata.audit (tenant, run_id, event, response_id, actor, details)
    SELECT tenant, run_id, %(event)s, id, %(actor)s, %(details)s::json
      FROM gone WHERE EXISTS (SELECT 1 FROM fermata.audit a WHERE a.run_id = gone.run_id)
)
SELECT id FROM gone;

-- ---------------------------------------------------------------- pausing

-- name: pause_first
-- The first pause of a run makes it a row. One statement, since each costs a round trip's work in the client:
-- fenced like finish_first, and nothing else happens if the fence finds nothing. A `late` response is one that nobody
-- could ask for so far: it gets its row here, unless one was written by a commit that was not heard of. Its audit opens
-- with who asked; the run's row, which would tell, is not to be seen within the statement that makes it.
WITH late AS (
    INSERT INTO fermata.responses AS r
           (id, tenant, run_id, model, previous_id, status, stored, input, body, created_at, completed_at, expires_at)
    SELECT %(response_id)s, %(tenant)s, %(run_id)s, %(model)s, %(previous_id)s::text, 'completed', %(stored)s::boolean,
           %(input)s::json, %(body)s::json, now() - %(age)s::interval, now(), now() + %(keep)s
     WHERE %(late)s
        ON CONFLICT (id) DO UPDATE
       SET status = 'completed', body = excluded.body, completed_at = now(), lease_id = NULL,
           expires_at = excluded.expires_at
     WHERE r.status = 'in_progress' AND r.lease_id = %(lease_id)s
    RETURNING id
), known AS (
    UPDATE fermata.responses
       SET status = 'completed', body = %(body)s::json, completed_at = now(), lease_id = NULL,
           expires_at = now() + %(keep)s
     WHERE id = %(response_id)s AND status = 'in_progress' AND lease_id = %(lease_id)s AND NOT %(late)s
    RETURNING id
), finished AS (
    SELECT id FROM late UNION ALL SELECT id FROM known
), paused AS (
    INSERT INTO fermata.runs (id, tenant, requester, model, status, response_id, settings, expires_at)
    SELECT %(run_id)s, %(tenant)s, %(requester)s, %(model)s, 'waiting', id, %(settings)s::json, now() + %(ttl)s
      FROM finished
    RETURNING id AS run_id
), asked AS (
    INSERT INTO fermata.interrupts
           (call_id, tenant, run_id, response_id, position, interrupt_id, name, question, status,
            expires_at, has_default, card)
    SELECT call_id, %(tenant)s, %(run_id)s, finished.id, position, interrupt_id, name, question::json, 'pending',
           now() + expires_in, has_default, %(card)s
      FROM finished,
           unnest(%(call_ids)b::text[], %(interrupt_ids)b::text[], %(names)b::text[], %(questions)b::text[],
                  %(expires_in)s::interval[], %(defaults)s::boolean[])
           WITH ORDINALITY
           AS batch (call_id, interrupt_id, name, question, expires_in, has_default, position)
), recorded AS (
    INSERT INTO fermata.audit (tenant, run_id, event, response_id, call_id, actor, details)
    SELECT %(tenant)s, %(run_id)s, told.event, told.response_id, told.call_id, told.actor, told.details
      FROM (SELECT 0 AS position, 'requested' AS event, id AS response_id, NULL AS call_id, %(requester)s AS actor,
                   '{}'::json AS details
              FROM finished
            UNION ALL
            SELECT position, 'asked', finished.id, call_id, NULL, details::json
              FROM finished, unnest(%(call_ids)b::text[], %(audits)b::text[])
                             WITH ORDINALITY AS batch (call_id, details, position)) AS told
     ORDER BY told.position
),
-- with: saved
SELECT id FROM finished;

-- ---------------------------------------------------------------- answering

-- name: asked_by
-- Which responses asked these calls: an answer may come without previous_response_id. A question of a card is
-- known to the client by the card's call, to reviewers by its own; told is the one that was asked for.
SELECT CASE WHEN call_id = ANY(%(call_ids)b::text[]) THEN call_id ELSE card END AS call_id, response_id, run_id, status
  FROM fermata.interrupts
 WHERE tenant = %(tenant)s AND (call_id = ANY(%(call_ids)b::text[]) OR card = ANY(%(call_ids)b::text[]));

-- name: response
-- A response of this tenant, stored or not; the caller decides what an unstored one may be used for.
SELECT id, run_id, model, status, stored, body::text AS body, lease_id, takeovers, conversation_id
  FROM fermata.responses
 WHERE tenant = %(tenant)s AND id = %(id)s AND (expires_at IS NULL OR expires_at > now());

-- name: lock_run_of
-- All who want to move a run queue here; the first commits its answers, the others then see them. Asked for by
-- a response of the run, so that it leaves together with the next two.
SELECT id, requester, model, status, response_id, settings::text AS settings, expires_at, expires_at <= now() AS expired
  FROM fermata.runs
 WHERE tenant = %(tenant)s
   AND id = (SELECT run_id FROM fermata.responses WHERE tenant = %(tenant)s AND id = %(response_id)s)
   FOR UPDATE;

-- name: lock_orphan
-- As lock_run_of, for recovery: who holds the row now may be ending the run, or be stopped; neither may keep recovery
-- from the other runs.
SELECT id, requester, model, status, response_id, settings::text AS settings
  FROM fermata.runs
 WHERE tenant = %(tenant)s AND id = %(run_id)s
   FOR UPDATE SKIP LOCKED;

-- name: questions
-- The batch that a response asked. A statement of its own after the lock: it sees what the lock waited for.
SELECT call_id, card, interrupt_id, question::text AS question, status, answer::text AS answer, answered_by, reviewer,
       answered_at
  FROM fermata.interrupts
 WHERE response_id = %(response_id)s
 ORDER BY position;

-- name: tell_card_again
-- A card that came back without a decision is told again under a new id: no input can hold two outputs of one call.
UPDATE fermata.interrupts SET card = %(card)s
 WHERE tenant = %(tenant)s AND response_id = %(response_id)s AND card IS NOT NULL AND status = 'pending';

-- name: accept_answers
-- Stored before the graph is resumed: an accepted answer is never lost. Consumes pending calls, or carries the
-- accepted ones of a run that failed after them to a new response; takes the lease; moves the run; opens the
-- response, in the conversation of the one that moved the run before. The caller holds the run's row and compares
-- the counts: no token, or a call that was not there to consume, rolls all back. `told` and `audits` are what the
-- audit says of it, a row each.
WITH lease AS (
    INSERT INTO fermata.leases (id, owner, expires_at)
    VALUES (%(run_id)s, %(owner)s, now() + %(ttl)s)
    ON CONFLICT (id) DO UPDATE
       SET owner = excluded.owner, token = nextval('fermata.lease_token'), expires_at = excluded.expires_at
     WHERE leases.expires_at <= now()
    RETURNING token
), consumed AS (
    UPDATE fermata.interrupts AS i
       SET status = 'answered', answer = batch.answer::json, answered_by = %(id)s,
           reviewer = CASE WHEN i.status = 'answered' THEN i.reviewer ELSE %(reviewer)s END,
           answered_at = coalesce(i.answered_at, now())
      FROM unnest(%(call_ids)b::text[], %(answers)b::text[]) AS batch (call_id, answer)
     WHERE i.call_id = batch.call_id AND i.run_id = %(run_id)s AND i.status = %(from_status)s
    RETURNING i.call_id
), moved AS (
    UPDATE fermata.runs
       SET status = 'running', response_id = %(id)s, changed_at = now(), expires_at = NULL
     WHERE id = %(run_id)s AND status IN ('waiting', 'stalled')
    RETURNING id
), opened AS (
    INSERT INTO fermata.responses
           (id, tenant, run_id, model, previous_id, status, stored, lease_id, resumes, conversation_id, input, body)
    SELECT %(id)s, %(tenant)s, %(run_id)s, %(model)s, %(previous_id)s, 'in_progress', %(stored)s, %(run_id)s,
           true, r.conversation_id, %(input)s::json, %(body)s::json
      FROM fermata.runs u LEFT JOIN fermata.responses r ON r.id = u.response_id
     WHERE u.id = %(run_id)s
    RETURNING conversation_id
), recorded AS (
    INSERT INTO fermata.audit (tenant, run_id, event, response_id, call_id, actor, details)
    SELECT %(tenant)s, moved.id, %(event)s, %(id)s, batch.call_id, %(reviewer)s, batch.details::json
      FROM moved, unnest(%(told)b::text[], %(audits)b::text[]) WITH ORDINALITY AS batch (call_id, details, position)
     ORDER BY batch.position
)
SELECT (SELECT token FROM lease) AS token, (SELECT count(*) FROM consumed) AS consumed,
       (SELECT count(*) FROM moved) AS moved, (SELECT conversation_id FROM opened) AS conversation_id;

-- ---------------------------------------------------------------- finishing a resumed run

-- name: end_resume
-- All that a holder writes when it is done with a run. The lease is consumed first: no row back, it is lost, and
-- nothing else happens. The row stays locked until the commit, so a takeover waits for it or comes before it.
-- `keep_run` is the TTL of a wait, the retention of an end. Checkpoints go; those of a new pause are written in
-- the same transaction afterwards; so is the audit of what it asks, and `event` is null then.
WITH fence AS (
    DELETE FROM fermata.leases WHERE id = %(run_id)s AND token = %(token)s RETURNING id
), settled AS (
    UPDATE fermata.runs
       SET status = %(run_status)s, changed_at = now(), expires_at = now() + %(keep_run)s
     WHERE id = (SELECT id FROM fence) AND status = 'running'
    RETURNING id
), finished AS (
    UPDATE fermata.responses
       SET status = %(status)s, body = %(body)s::json, completed_at = now(), lease_id = NULL,
           expires_at = now() + %(keep)s
     WHERE id = %(id)s AND status = 'in_progress' AND run_id = (SELECT id FROM settled)
    RETURNING id, tenant, run_id
), writes AS (
    DELETE FROM checkpoint_writes WHERE thread_id = (SELECT id FROM fence)
), blobs AS (
    DELETE FROM checkpoint_blobs WHERE thread_id = (SELECT id FROM fence)
), checkpoints AS (
    DELETE FROM checkpoints WHERE thread_id = (SELECT id FROM fence)
), recorded AS (
    INSERT INTO fermata.audit (tenant, run_id, event, response_id, actor, details)
    SELECT tenant, run_id, %(event)s, id, %(actor)s, %(details)s::json FROM finished WHERE %(event)s::text IS NOT NULL
)
SELECT id FROM finished;

-- name: reopen
-- An answer that LangGraph's own validation refused was none; end_resume came before it.
UPDATE fermata.interrupts
   SET status = 'pending', answer = NULL, answered_by = NULL, answered_at = NULL, reviewer = NULL
 WHERE run_id = %(run_id)s AND answered_by = %(id)s AND status = 'answered';

-- name: ask
-- The questions of a later pause, in the order in which the batch is told; end_resume came before it.
WITH recorded AS (
    INSERT INTO fermata.audit (tenant, run_id, event, response_id, call_id, details)
    SELECT %(tenant)s, %(run_id)s, 'asked', %(response_id)s, call_id, details::json
      FROM unnest(%(call_ids)b::text[], %(audits)b::text[]) WITH ORDINALITY AS batch (call_id, details, position)
     ORDER BY position
)
INSERT INTO fermata.interrupts
       (call_id, tenant, run_id, response_id, position, interrupt_id, name, question, status, expires_at, has_default,
        card)
SELECT call_id, %(tenant)s, %(run_id)s, %(response_id)s, position, interrupt_id, name, question::json, 'pending',
       now() + expires_in, has_default, %(card)s
  FROM unnest(%(call_ids)b::text[], %(interrupt_ids)b::text[], %(names)b::text[], %(questions)b::text[],
              %(expires_in)s::interval[], %(defaults)s::boolean[])
       WITH ORDINALITY AS batch (call_id, interrupt_id, name, question, expires_in, has_default, position);

-- ---------------------------------------------------------------- reading

-- name: settled
-- Which of these responses are no longer in progress, or gone: one query for all who wait on this process.
SELECT waited.id
  FROM unnest(%(ids)b::text[]) AS waited (id)
 WHERE NOT EXISTS (SELECT 1 FROM fermata.responses r
                    WHERE r.id = waited.id AND r.status IN ('queued', 'in_progress'));

-- name: history
-- The conversation that ends in this response, oldest first. Each response stores its own input and output
-- only, so a conversation of n turns costs n rows, not n squared. LIMIT keeps the planner at the primary key, a row
-- a turn; a join may read the whole table for each (measured: 94 ms for 200 turns, instead of 1).
WITH RECURSIVE chain AS (
    SELECT id, previous_id, input, body, 1 AS depth
      FROM fermata.responses
     WHERE tenant = %(tenant)s AND id = %(id)s
    UNION ALL
    SELECT r.id, r.previous_id, r.input, r.body, chain.depth + 1
      FROM chain
      CROSS JOIN LATERAL (SELECT id, previous_id, input, body FROM fermata.responses
                           WHERE id = chain.previous_id AND tenant = %(tenant)s LIMIT 1) AS r
)
SELECT id, input::text AS input, body::text AS body FROM chain ORDER BY depth DESC;
