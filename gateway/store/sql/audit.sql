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
-- belongs. Nothing is found, nothing written for an id that nobody has. Bounded like record_refusal.
WITH named AS (
    SELECT r.tenant, r.run_id, r.id AS response_id, NULL AS call_id
      FROM fermata.responses r WHERE r.id = ANY(%(ids)b::text[])
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
