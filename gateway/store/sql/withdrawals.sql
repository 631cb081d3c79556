-- What a client takes back. Parameters and comments as in queries.sql.

-- name: stands_with
-- The responses that a run's state is about: the one that moves it or moved it last, those with open questions,
-- and those whose answers it is working on or failed after. The caller holds the run's row.
SELECT response_id FROM fermata.runs WHERE tenant = %(tenant)s AND id = %(run_id)s
UNION
SELECT i.response_id
  FROM fermata.interrupts i JOIN fermata.runs r ON r.id = i.run_id
 WHERE i.tenant = %(tenant)s AND i.run_id = %(run_id)s
   AND (i.status = 'pending' OR (r.status IN ('running', 'stalled') AND i.answered_by = r.response_id));

-- name: withdraw
-- A run that nobody moves ends: questions and checkpoints go with it. The caller holds the run's row. The row
-- and its questions stay for the retention, so that a late answer is told why it is none.
WITH run AS (
    UPDATE fermata.runs SET status = 'cancelled', changed_at = now(), expires_at = now() + %(retention)s
     WHERE tenant = %(tenant)s AND id = %(run_id)s AND status IN ('waiting', 'stalled')
    RETURNING id
), closed AS (
    UPDATE fermata.interrupts SET status = 'cancelled'
     WHERE run_id = (SELECT id FROM run) AND status = 'pending'
), recorded AS (
    INSERT INTO fermata.audit (tenant, run_id, event, response_id, actor, details)
    SELECT %(tenant)s, id, 'cancelled', %(response_id)s, %(actor)s,
           json_build_object('open', ARRAY(SELECT i.call_id FROM fermata.interrupts i
                                            WHERE i.run_id = run.id AND i.status = 'pending'
                                            ORDER BY i.created_at, i.position))
      FROM run
), writes AS (
    DELETE FROM checkpoint_writes WHERE thread_id = (SELECT id FROM run)
), blobs AS (
    DELETE FROM checkpoint_blobs WHERE thread_id = (SELECT id FROM run)
), checkpoints AS (
    DELETE FROM checkpoints WHERE thread_id = (SELECT id FROM run)
)
SELECT id FROM run;

-- name: take_responses_back
-- None that is in progress: its holder is going to write it. Those of a run that only talked leave no audit.
WITH gone AS (
    DELETE FROM fermata.responses
     WHERE tenant = %(tenant)s AND id = ANY(%(ids)b::text[]) AND status NOT IN ('queued', 'in_progress')
    RETURNING id, run_id
), recorded AS (
    INSERT INTO fermata.audit (tenant, run_id, event, response_id, actor, details)
    SELECT %(tenant)s, run_id, 'deleted', id, %(actor)s, '{}'
      FROM gone WHERE EXISTS (SELECT 1 FROM fermata.audit a WHERE a.run_id = gone.run_id)
     ORDER BY id
)
SELECT id FROM gone;
