-- The ledger of effects: what graphs do in the world, once per business key.

-- A row outlives its run on purpose: the key names the business operation, and the same operation may be asked for
-- again by another run, next year. `claim` is the fence: whoever settles a claim names it, so a process that was
-- taken for dead cannot overwrite what became of its claim meanwhile.
CREATE SEQUENCE fermata.effect_claim;
CREATE TABLE fermata.effects (
    tenant       text NOT NULL,
    key          text NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 1024),
    fingerprint  bytea NOT NULL CHECK (octet_length(fingerprint) = 32),  -- SHA-256 of the arguments
    arguments    json NOT NULL,
    status       text NOT NULL CHECK (status IN ('claimed', 'uncertain', 'done', 'failed')),
    claim        bigint NOT NULL DEFAULT nextval('fermata.effect_claim'),
    attempts     integer NOT NULL DEFAULT 1,          -- how often it was claimed
    owner        text NOT NULL,                       -- the process that claimed it last; it is alive while its lease is
    run_id       text NOT NULL,                       -- the run that claimed it last; no reference: it goes first
    response_id  text NOT NULL,
    result       json,
    failure      json,
    claimed_at   timestamptz NOT NULL DEFAULT now(),
    settled_at   timestamptz,                         -- done, failed: since when
    PRIMARY KEY (tenant, key),
    CHECK ((status IN ('done', 'failed')) = (settled_at IS NOT NULL)),
    CHECK ((status = 'done') = (result IS NOT NULL)),
    CHECK ((status = 'failed') = (failure IS NOT NULL))
);
-- What an operator looks at, and what the sweep deletes where a retention is set.
CREATE INDEX effects_open ON fermata.effects (claimed_at) WHERE status IN ('claimed', 'uncertain');
CREATE INDEX effects_settled ON fermata.effects (settled_at) WHERE settled_at IS NOT NULL;
