-- Conversations and their items. Parameters and comments as in queries.sql.

-- name: create_conversation
INSERT INTO fermata.conversations (id, tenant, metadata)
VALUES (%(id)s, %(tenant)s, %(metadata)s::json)
RETURNING id, metadata::text AS metadata, created_at;

-- name: conversation
SELECT id, metadata::text AS metadata, created_at
  FROM fermata.conversations
 WHERE tenant = %(tenant)s AND id = %(id)s;

-- name: update_conversation
UPDATE fermata.conversations SET metadata = %(metadata)s::json
 WHERE tenant = %(tenant)s AND id = %(id)s
RETURNING id, metadata::text AS metadata, created_at;

-- name: delete_conversation
-- Its items go by the foreign key; responses stay, and find nothing to append to.
DELETE FROM fermata.conversations WHERE tenant = %(tenant)s AND id = %(id)s;

-- name: lock_conversation
-- Whoever wants to change a conversation queues here, and before any run's row: an ending that appends holds both.
SELECT id, metadata::text AS metadata, created_at
  FROM fermata.conversations
 WHERE tenant = %(tenant)s AND id = %(id)s
   FOR UPDATE;

-- name: busy_with
-- A statement of its own after the lock: it sees what the lock waited for.
SELECT id
  FROM fermata.responses
 WHERE tenant = %(tenant)s AND conversation_id = %(id)s AND status IN ('queued', 'in_progress');

-- name: open_question_of
-- The response of this conversation whose questions wait. There is one at most: while it waits, no other starts.
SELECT i.response_id, i.run_id
  FROM fermata.responses r
  JOIN fermata.interrupts i ON i.response_id = r.id
  JOIN fermata.runs u ON u.id = i.run_id
 WHERE r.tenant = %(tenant)s AND r.conversation_id = %(id)s
   AND i.status = 'pending' AND u.status = 'waiting' AND u.expires_at > now()
 LIMIT 1;

-- name: conversation_of_response
SELECT conversation_id FROM fermata.responses WHERE tenant = %(tenant)s AND id = %(id)s;

-- name: open_in_conversation
-- As open_first, for a response whose items go to a conversation; the caller holds the conversation's row. It
-- commits with it, so not asynchronously.
INSERT INTO fermata.responses
       (id, tenant, run_id, model, previous_id, status, stored, lease_id, conversation_id, input, body)
VALUES (%(id)s, %(tenant)s, %(run_id)s, %(model)s, NULL, 'in_progress', %(stored)s, %(lease_id)s,
        %(conversation_id)s, %(input)s::json, %(body)s::json);

-- name: input_of
-- What a response is about to append, in the transaction that ends it. If it carried answers, only they are new of
-- its input.
SELECT input::text AS input,
       EXISTS (SELECT 1 FROM fermata.interrupts i WHERE i.run_id = r.run_id AND i.answered_by = r.id) AS answers
  FROM fermata.responses r
 WHERE tenant = %(tenant)s AND id = %(id)s;

-- name: append_items
-- Positions only grow; an item that is there already, or a second output of a call, is left out.
WITH grown AS (
    UPDATE fermata.conversations SET last_position = last_position + cardinality(%(ids)b::text[])
     WHERE tenant = %(tenant)s AND id = %(id)s
    RETURNING id, tenant, last_position - cardinality(%(ids)b::text[]) AS before
)
INSERT INTO fermata.conversation_items (conversation_id, position, tenant, id, answers, item)
SELECT grown.id, grown.before + batch.place, grown.tenant, batch.id, batch.answers, batch.item::json
  FROM grown,
       unnest(%(ids)b::text[], %(answers)b::text[], %(items)b::text[]) WITH ORDINALITY
       AS batch (id, answers, item, place)
    ON CONFLICT DO NOTHING
RETURNING position, item::text AS item;

-- name: conversation_history
-- The whole of it, oldest first: what a graph is started with.
SELECT item::text AS item
  FROM fermata.conversation_items
 WHERE tenant = %(tenant)s AND conversation_id = %(id)s
 ORDER BY position;

-- name: conversation_item
SELECT position, item::text AS item
  FROM fermata.conversation_items
 WHERE tenant = %(tenant)s AND conversation_id = %(id)s AND id = %(item_id)s;

-- name: items_onward
-- A page, oldest first.
SELECT item::text AS item
  FROM fermata.conversation_items
 WHERE tenant = %(tenant)s AND conversation_id = %(id)s AND position > %(position)s
 ORDER BY position
 LIMIT %(batch)s;

-- name: items_backward
-- A page, newest first.
SELECT item::text AS item
  FROM fermata.conversation_items
 WHERE tenant = %(tenant)s AND conversation_id = %(id)s AND position < %(position)s
 ORDER BY position DESC
 LIMIT %(batch)s;

-- name: delete_item
DELETE FROM fermata.conversation_items
 WHERE tenant = %(tenant)s AND conversation_id = %(id)s AND id = %(item_id)s;

-- name: items_by_id
-- What references stand for that are no items of responses.
SELECT DISTINCT ON (id) id, item::text AS item
  FROM fermata.conversation_items
 WHERE tenant = %(tenant)s AND id = ANY(%(ids)b::text[])
 ORDER BY id, conversation_id;
