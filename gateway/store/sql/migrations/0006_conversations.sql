-- Conversations: items that outlive the responses that made them.

CREATE TABLE fermata.conversations (
    id           text PRIMARY KEY,
    tenant       text NOT NULL,
    metadata     json NOT NULL,
    last_position bigint NOT NULL DEFAULT 0,          -- of the newest item, whether it is still there or not
    created_at   timestamptz NOT NULL DEFAULT now()
);

-- An item of a conversation, as it is told back. A conversation of n items is n rows: a turn appends, and rewrites
-- nothing.
CREATE TABLE fermata.conversation_items (
    conversation_id text NOT NULL REFERENCES fermata.conversations ON DELETE CASCADE,
    position     bigint NOT NULL,
    tenant       text NOT NULL,
    id           text NOT NULL,
    answers      text,                                -- the call whose output it is
    item         json NOT NULL,
    PRIMARY KEY (conversation_id, position)
);
-- An item stands in a conversation once, however often a client echoes it; and a reference finds it by its id.
CREATE UNIQUE INDEX conversation_items_by_id ON fermata.conversation_items (tenant, id, conversation_id);
-- A call has one output.
CREATE UNIQUE INDEX conversation_items_answers ON fermata.conversation_items (conversation_id, answers)
 WHERE answers IS NOT NULL;

-- The conversation that a response's items go to when it ends; its row may be gone by then.
ALTER TABLE fermata.responses ADD COLUMN conversation_id text;
CREATE INDEX responses_of_conversation ON fermata.responses (conversation_id) WHERE conversation_id IS NOT NULL;
-- One response at a time: a second one would answer a history that is about to change. No lock to release: whatever
-- ends a response, recovery included, makes its conversation free.
CREATE UNIQUE INDEX responses_busy_conversation ON fermata.responses (conversation_id)
 WHERE conversation_id IS NOT NULL AND status IN ('queued', 'in_progress');
