-- What reviewers see and answer. Parameters and comments as in queries.sql.

-- name: open_interrupts
-- A tenant's open questions behind a cursor, oldest first. Who may answer is judged by the caller, by the same
-- function that judges an answer: a second reading of roles in SQL could only disagree with it.
SELECT i.call_id, i.response_id, i.position, i.name, i.question::text AS question, i.status, i.answered_by,
       i.created_at, i.answered_at, r.model, r.requester, r.expires_at
  FROM fermata.interrupts i JOIN fermata.runs r ON r.id = i.run_id
 WHERE i.tenant = %(tenant)s AND i.status = 'pending' AND r.status = 'waiting' AND r.expires_at > now()
   AND (i.created_at, i.response_id, i.position)
       > (%(created_at)s::timestamptz, %(response_id)s::text, %(position)s::integer)
 ORDER BY i.created_at, i.response_id, i.position
 LIMIT %(batch)s;

-- name: interrupt
-- A question whose run waited beyond its TTL is expired, swept or not.
SELECT i.call_id, i.response_id, i.position, i.name, i.question::text AS question, i.answered_by,
       i.created_at, i.answered_at, r.model, r.requester, r.expires_at,
       CASE WHEN i.status = 'pending' AND r.expires_at <= now() THEN 'expired' ELSE i.status END AS status
  FROM fermata.interrupts i JOIN fermata.runs r ON r.id = i.run_id
 WHERE i.tenant = %(tenant)s AND i.call_id = %(call_id)s;

-- name: keep_answer
-- One of several: the run goes on when the last is there. The caller holds the run's row.
-- An answered question's own time no longer ends the wait.
WITH kept AS (
    UPDATE fermata.interrupts
       SET status = 'answered', answer = %(answer)s::json, reviewer = %(reviewer)s, answered_at = now()
     WHERE tenant = %(tenant)s AND call_id = %(call_id)s AND status = 'pending'
    RETURNING call_id, run_id, response_id
), waits_on AS (
    UPDATE fermata.runs
       SET expires_at = (SELECT min(i.expires_at) FROM fermata.interrupts i
                          WHERE i.run_id = runs.id AND i.status = 'pending' AND i.call_id <> %(call_id)s)
     WHERE id = (SELECT run_id FROM kept)
), recorded AS (
    INSERT INTO fermata.audit (tenant, run_id, event, response_id, call_id, actor, details)
    SELECT %(tenant)s, run_id, 'answered', response_id, call_id, %(reviewer)s, %(details)s::json FROM kept
)
SELECT call_id FROM kept;

-- name: carry_answers
-- The answers that came before the last one go with it: a takeover finds them by the response that carries them.
-- After accept_answers, in its transaction.
UPDATE fermata.interrupts SET answered_by = %(id)s
 WHERE tenant = %(tenant)s AND response_id = %(asking)s AND status = 'answered';

-- name: follow
-- After accept_answers, in its transaction.
UPDATE fermata.responses SET follows = %(asking)s WHERE tenant = %(tenant)s AND id = %(id)s;

-- name: followers
-- What reviewers' answers made of a response, oldest first: each was asked for by no client, and carries the
-- answers to the one before. Costs its own length: a batch is found by the response that asked it.
WITH RECURSIVE chain AS (
    SELECT %(id)s::text AS id, 0 AS depth
    UNION ALL
    SELECT r.id, chain.depth + 1
      FROM chain
      CROSS JOIN LATERAL (SELECT i.answered_by FROM fermata.interrupts i
                           WHERE i.response_id = chain.id AND i.status = 'answered'
                           ORDER BY i.position LIMIT 1) AS carried
      JOIN fermata.responses r ON r.id = carried.answered_by AND r.follows = chain.id
     WHERE r.tenant = %(tenant)s
)
SELECT r.id, r.status, r.input::text AS input, r.body::text AS body
  FROM chain JOIN fermata.responses r ON r.id = chain.id
 WHERE chain.depth > 0
 ORDER BY chain.depth;
