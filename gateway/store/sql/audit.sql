-- The audit. Parameters and comments as in queries.sql. The table computes place, time and hash of a row by itself.

-- name: record
-- One row, in the caller's transaction. As the last thing it does: the run's lock is held until its end.
SELECT fermata.record(%(tenant)s, %(run_id)s, %(event)s, %(response_id)s, %(actor)s, %(details)s::json,
                      %(call_id)s, %(requester)s) AS seq;
