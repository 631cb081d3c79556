-- API keys, questions answered one by one, and who follows whom.

-- A key is `fk_<id>_<secret>`. The id finds the row; of the secret only its SHA-256 is here. It is 256 random
-- bits, so that no salt and no slow hash would add anything.
CREATE TABLE fermata.api_keys (
    id           text PRIMARY KEY,                    -- the part of the key that may be shown
    digest       bytea NOT NULL CHECK (octet_length(digest) = 32),
    tenant       text NOT NULL CHECK (tenant <> ''),
    subject      text NOT NULL CHECK (subject <> ''),
    roles        text[] NOT NULL DEFAULT '{}',
    created_at   timestamptz NOT NULL DEFAULT now(),
    revoked_at   timestamptz                          -- kept on: who had a key is part of the record
);

-- The reviewers' list: a tenant's open questions, oldest first, a batch in its order.
CREATE INDEX interrupts_open ON fermata.interrupts (tenant, created_at, response_id, position) WHERE status = 'pending';

-- The response that asked, if a reviewer's answer opened this one: whoever polls that one is shown this one's
-- output as well. NULL for a response that a client asked for, which its client has.
ALTER TABLE fermata.responses ADD COLUMN follows text;
