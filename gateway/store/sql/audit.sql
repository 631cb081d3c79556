-- The audit. Parameters and comments as in queries.sql. The table computes place, time and hash of a row by itself.

-- name: record
-- One row, in the caller's transaction. As the last thing it does: the run's lock is held until its end.
SELECT fermata.record(%(tenant)s, %(run_id)s, %(event)s, %(response_id)s, %(actor)s, %(details)s::json,
                      %(call_id)s, %(requester)s) AS seq;

-- ---------------------------------------------------------------- refusals

-- name: record_refusal
-- An answer that was refused, once the transaction that refused it is over. Bounded: whoever keeps trying the same
-- question is recorded twenty times, and the twentieth row says that it is the last.
INSERT INTO fermata.audit (tenant, run_id, event, response_id, call_id, actor, details)
SELECT i.tenant, i.run_id, 'refused', i.response_id, i.call_id, %(actor)s,
       json_strip_nulls(json_build_object('code', %(code)s::text, 'message', %(message)s::text,
                                          'roles', %(roles)s::text[],
                                          'last', CASE WHEN before.refusals = 19 THEN true END))
  FROM fermata.interrupts i
  CROSS JOIN LATERAL (SELECT count(*) AS refusals FROM fermata.audit a
                       WHERE a.run_id = i.run_id AND a.event = 'refused' AND a.call_id = i.call_id
                         AND a.actor = %(actor)s) AS before
 WHERE i.tenant = %(tenant)s AND (i.call_id = %(call_id)s OR i.card = %(call_id)s) AND before.refusals < 20
 ORDER BY i.position
 LIMIT 1;

-- name: record_stranger
-- Somebody of another tenant sent the id of a response or a question. To them it is unknown; it is on record where it
-- belongs. Nothing is found, nothing written for an id that nobody has; nor of a run whose audit would open with it:
-- that opens with who asked. Bounded like record_refusal.
WITH named AS (
    SELECT r.tenant, r.run_id, r.id AS response_id, NULL AS call_id
      FROM fermata.responses r
     WHERE r.id = ANY(%(ids)b::text[])
       AND (r.completed_at IS NOT NULL
            OR EXISTS (SELECT 1 FROM fermata.runs u WHERE u.id = r.run_id)
            OR EXISTS (SELECT 1 FROM fermata.audit a WHERE a.run_id = r.run_id))
    UNION
    SELECT i.tenant, i.run_id, i.response_id, i.call_id
      FROM fermata.interrupts i WHERE i.call_id = ANY(%(ids)b::text[]) OR i.card = ANY(%(ids)b::text[])
)
INSERT INTO fermata.audit (tenant, run_id, event, response_id, call_id, details)
SELECT named.tenant, named.run_id, 'refused', named.response_id, named.call_id,
       json_strip_nulls(json_build_object('code', %(code)s::text, 'stranger',
                                          json_build_object('tenant', %(tenant)s::text, 'subject', %(actor)s::text),
                                          'last', CASE WHEN before.refusals = 19 THEN true END))
  FROM named
  CROSS JOIN LATERAL (SELECT count(*) AS refusals FROM fermata.audit a
                       WHERE a.run_id = named.run_id AND a.event = 'refused' AND a.actor IS NULL
                         AND a.response_id = named.response_id
                         AND coalesce(a.call_id, '') = coalesce(named.call_id, '')) AS before
 WHERE named.tenant <> %(tenant)s AND before.refusals < 20
 ORDER BY named.run_id, named.response_id, named.call_id;

-- ---------------------------------------------------------------- reading

-- name: audited_run
-- A response that was deleted, and a question whose run is gone, are still in the audit. A card is not: the rows of
-- its questions are.
SELECT run_id FROM fermata.audit WHERE run_id = %(id)s
UNION
SELECT run_id FROM fermata.audit WHERE response_id = %(id)s
UNION
SELECT run_id FROM fermata.audit WHERE call_id = %(id)s
UNION
SELECT i.run_id FROM fermata.interrupts i JOIN fermata.audit a ON a.run_id = i.run_id AND a.seq = 1
 WHERE i.card = %(id)s
UNION
SELECT r.run_id FROM fermata.responses r JOIN fermata.audit a ON a.run_id = r.run_id AND a.seq = 1
 WHERE r.id = %(id)s;

-- name: audit_rows
SELECT run_id, seq, tenant, event, response_id, call_id, actor, at, previous, hash, details::text AS details
  FROM fermata.audit
 WHERE (run_id, seq) > (%(after_run)s::text, %(after_seq)s::integer)
   AND (%(run_id)s::text IS NULL OR run_id = %(run_id)s)
 ORDER BY run_id, seq
 LIMIT %(batch)s;

-- name: audit_since
-- The first condition is for the index, the second for rows of the same moment.
SELECT run_id, seq, tenant, event, response_id, call_id, actor, at, previous, hash, details::text AS details
  FROM fermata.audit
 WHERE at >= %(after)s::timestamptz
   AND (at, run_id, seq) > (%(after)s::timestamptz, %(after_run)s::text, %(after_seq)s::integer)
 ORDER BY at, run_id, seq
 LIMIT %(batch)s;

-- name: audit_hashes
SELECT a.run_id, a.seq, a.hash
  FROM unnest(%(run_ids)b::text[], %(seqs)s::integer[]) AS asked (run_id, seq)
  JOIN fermata.audit a ON a.run_id = asked.run_id AND a.seq = asked.seq;

-- name: audit_missing
-- One statement, so one snapshot: a row and what it records were committed together. What happened before there was
-- an audit is not looked for. A run that asked and is gone must have ended. Effects are counted: whatever they were,
-- each that was settled has a row.
WITH begun AS (
    SELECT applied_at AS at FROM fermata.migrations WHERE version = 4
), told AS (
    SELECT i.run_id, 'asked' AS event, i.call_id AS about
      FROM fermata.interrupts i, begun WHERE i.created_at > begun.at
    UNION ALL
    SELECT i.run_id, 'answered', i.call_id
      FROM fermata.interrupts i, begun WHERE i.answered_at > begun.at
), ended AS (
    SELECT r.id AS run_id, r.status AS event, r.response_id AS about
      FROM fermata.runs r, begun
     WHERE r.changed_at > begun.at AND r.status IN ('completed', 'failed', 'cancelled', 'expired', 'stalled')
), settled AS (
    SELECT e.run_id, count(*) AS effects
      FROM fermata.effects e, begun WHERE e.settled_at > begun.at GROUP BY e.run_id
), absent AS (
    SELECT told.run_id, told.event, told.about
      FROM told
     WHERE NOT EXISTS (SELECT 1 FROM fermata.audit a
                        WHERE a.run_id = told.run_id AND a.event = told.event AND a.call_id = told.about)
    UNION ALL
    SELECT ended.run_id, ended.event, ended.about
      FROM ended
     WHERE NOT EXISTS (SELECT 1 FROM fermata.audit a WHERE a.run_id = ended.run_id AND a.event = ended.event)
    UNION ALL
    SELECT settled.run_id, 'effect_done', settled.effects || ' settled'
      FROM settled
     WHERE settled.effects > (SELECT count(*) FROM fermata.audit a
                               WHERE a.run_id = settled.run_id
                                 AND a.event IN ('effect_done', 'effect_failed', 'effect_resolved'))
    UNION ALL
    SELECT DISTINCT a.run_id, 'completed', 'the run is gone'
      FROM fermata.audit a
     WHERE a.event = 'asked'
       AND NOT EXISTS (SELECT 1 FROM fermata.runs r WHERE r.id = a.run_id)
       AND NOT EXISTS (SELECT 1 FROM fermata.audit e
                        WHERE e.run_id = a.run_id AND e.event IN ('completed', 'failed', 'cancelled', 'expired'))
)
SELECT run_id, event, about
  FROM absent
 WHERE %(run_id)s::text IS NULL OR run_id = %(run_id)s
 ORDER BY run_id, event, about;
