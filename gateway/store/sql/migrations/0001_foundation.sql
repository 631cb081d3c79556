-- The foundation: responses, the runs that wait, their interrupts, the leases.
-- Everything lives in the schema `fermata`, named in full, so that no session state (search_path) is
-- needed behind a transaction-mode pooler. LangGraph's own tables stay where LangGraph puts them.

-- A run: one LangGraph thread. A row exists from the first pause on; a run that never pauses leaves
-- only its response.
CREATE TABLE fermata.runs (
    id           text PRIMARY KEY,                    -- the thread_id of its checkpoints
    tenant       text NOT NULL,
    requester    text NOT NULL,                       -- the subject that started it
    model        text NOT NULL,
    status       text NOT NULL
                 CHECK (status IN ('running', 'waiting', 'stalled', 'completed', 'failed', 'cancelled', 'expired')),
    response_id  text NOT NULL,                       -- the response that moves it, or moved it last
    settings     json NOT NULL,                       -- of the request that started it; the graph keeps seeing them
    created_at   timestamptz NOT NULL DEFAULT now(),
    changed_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz,                         -- waiting, stalled: expires then; final: row is deleted then
    CHECK ((status = 'running') = (expires_at IS NULL))
);
CREATE INDEX runs_expiring ON fermata.runs (expires_at) WHERE status IN ('waiting', 'stalled');
CREATE INDEX runs_ended ON fermata.runs (expires_at) WHERE status IN ('completed', 'failed', 'cancelled', 'expired');

-- A response, as the client sees it. `json`, not `jsonb`: bodies are told back byte by byte, and jsonb
-- refuses \u0000 and lone surrogates, which people do send.
CREATE TABLE fermata.responses (
    id           text PRIMARY KEY,
    tenant       text NOT NULL,
    run_id       text NOT NULL,                       -- no reference: most runs never get a row
    model        text NOT NULL,
    previous_id  text,
    status       text NOT NULL
                 CHECK (status IN ('queued', 'in_progress', 'completed', 'incomplete', 'failed', 'cancelled')),
    stored       boolean NOT NULL,                    -- false: kept for a replay only, invisible otherwise
    lease_id     text,                                -- the lease that keeps it alive while it is in progress
    resumes      boolean NOT NULL DEFAULT false,      -- an accepted answer stands behind it: taken over, not failed
    takeovers    integer NOT NULL DEFAULT 0,          -- how many processes died over it
    input        json NOT NULL,                       -- the input items of its own request
    body         json NOT NULL,                       -- the Response resource
    created_at   timestamptz NOT NULL DEFAULT now(),
    completed_at timestamptz,
    expires_at   timestamptz,
    CHECK ((status IN ('queued', 'in_progress')) = (completed_at IS NULL)),
    CHECK (status <> 'in_progress' OR lease_id IS NOT NULL)
);
CREATE INDEX responses_in_progress ON fermata.responses (lease_id) WHERE status = 'in_progress';
CREATE INDEX responses_expiring ON fermata.responses (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX responses_of_run ON fermata.responses (run_id);

-- A question to people: one pending LangGraph interrupt, told as one function_call.
CREATE TABLE fermata.interrupts (
    call_id      text PRIMARY KEY,
    tenant       text NOT NULL,
    run_id       text NOT NULL REFERENCES fermata.runs ON DELETE CASCADE,
    response_id  text NOT NULL,                       -- the response that asked
    position     integer NOT NULL,                    -- within the batch
    interrupt_id text NOT NULL,                       -- LangGraph's id; never told
    name         text NOT NULL,
    card         text,                                -- the call that asks it, if a card of the client's does
    question     json NOT NULL,
    status       text NOT NULL CHECK (status IN ('pending', 'answered', 'expired', 'cancelled')),
    answer       json,                                -- what LangGraph is resumed with, stored before it is
    answered_by  text,                                -- the response that carries the answer
    reviewer     text,                                -- the subject that answered
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz NOT NULL,                -- its own time, at most its run's TTL
    has_default  boolean NOT NULL DEFAULT false,      -- silence is an answer: it is given then, not expired
    answered_at  timestamptz,
    CHECK ((status = 'answered') = (answered_at IS NOT NULL)),
    CHECK ((answer IS NULL) = (answered_at IS NULL)),
    UNIQUE (response_id, position)
);
-- One open question per interrupt of a run: an answer can only ever meet one.
CREATE UNIQUE INDEX interrupts_pending ON fermata.interrupts (run_id, interrupt_id) WHERE status = 'pending';
CREATE INDEX interrupts_of_card ON fermata.interrupts (card) WHERE card IS NOT NULL;
CREATE INDEX interrupts_of_run ON fermata.interrupts (run_id);

-- A lease: the right to move a run (its id), or the sign of life of a process (its owner id).
-- Tokens only grow, so a write that names an old one finds no row.
CREATE SEQUENCE fermata.lease_token;
CREATE TABLE fermata.leases (
    id           text PRIMARY KEY,
    owner        text NOT NULL,
    token        bigint NOT NULL DEFAULT nextval('fermata.lease_token'),
    expires_at   timestamptz NOT NULL
);
