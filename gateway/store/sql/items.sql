-- Items of responses. Parameters and comments as in queries.sql.

-- name: responses_of_items
-- An item's id holds its response's, so that a reference to it needs no index. Only of responses that can be
-- retrieved.
SELECT id, input::text AS input, body::text AS body
  FROM fermata.responses
 WHERE tenant = %(tenant)s AND id = ANY(%(ids)b::text[]) AND stored AND (expires_at IS NULL OR expires_at > now());

-- name: chain
-- The conversation that ends in this response, newest first, by ids alone: a page of its items then reads the
-- rows that it shows and no others. LIMIT keeps the planner at the primary key, a row a turn; a join may read the
-- whole table for each (measured).
WITH RECURSIVE chain AS (
    SELECT id, previous_id, 1 AS depth
      FROM fermata.responses
     WHERE tenant = %(tenant)s AND id = %(id)s AND stored AND (expires_at IS NULL OR expires_at > now())
    UNION ALL
    SELECT r.id, r.previous_id, chain.depth + 1
      FROM chain
      CROSS JOIN LATERAL (SELECT id, previous_id FROM fermata.responses
                           WHERE id = chain.previous_id AND tenant = %(tenant)s LIMIT 1) AS r
)
SELECT id FROM chain ORDER BY depth;

-- name: turns
-- What some responses of a chain took and gave, in no order.
SELECT id, input::text AS input, body::text AS body
  FROM fermata.responses
 WHERE tenant = %(tenant)s AND id = ANY(%(ids)b::text[]);
