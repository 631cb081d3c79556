-- The audit: what happened to each run, in rows that nobody changes.
-- Rows of a run are chained: each holds the hash of the one before it, the first that of its tenant and run. The
-- table computes the chain itself, whoever inserts, so that all writers agree; what may be given is what happened,
-- never the place, the time or the hash. The rows of a run survive the run.

CREATE TABLE fermata.audit (
    run_id       text NOT NULL,                       -- no reference: it survives its run
    seq          integer NOT NULL,                    -- within the run, from 1, without a gap
    tenant       text NOT NULL,
    event        text NOT NULL CHECK (event ~ '^[a-z]+(_[a-z]+)*$'),
    response_id  text,
    call_id      text,                                -- the question it is about
    actor        text,                                -- a subject, or system:…; NULL: the run itself
    details      json NOT NULL,
    at           timestamptz NOT NULL,                -- when it was written, on the database's clock
    previous     bytea NOT NULL,
    hash         bytea NOT NULL,
    PRIMARY KEY (run_id, seq)
);
CREATE INDEX audit_at ON fermata.audit (at);
CREATE INDEX audit_of_response ON fermata.audit (response_id) WHERE response_id IS NOT NULL;
CREATE INDEX audit_of_call ON fermata.audit (call_id) WHERE call_id IS NOT NULL;

-- What a row's hash is made of, as the text of a JSON array. `details` go in as the text that was stored.
CREATE FUNCTION fermata.audit_hash(one fermata.audit) RETURNS bytea LANGUAGE sql STABLE AS $$
    SELECT sha256(convert_to(json_build_array(
        encode(one.previous, 'hex'), one.tenant, one.run_id, one.seq, one.event, one.response_id, one.call_id,
        one.actor, (extract(epoch FROM one.at) * 1000000)::bigint, one.details::text)::text, 'UTF8'))
$$;

-- Before each insert: its place, its time and its hash. The lock is the run's and ends with the transaction, so
-- parallel writers queue and the chain has one end. `requested` opens the chain: it is put before the first row if
-- nobody sent it, and passed over if it is there.
CREATE FUNCTION fermata.audit_chain() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    latest fermata.audit;
    opening record;
BEGIN
    IF coalesce(NEW.seq::text, NEW.at::text, NEW.previous::text, NEW.hash::text) IS NOT NULL THEN
        RAISE EXCEPTION 'fermata.audit computes seq, at, previous and hash itself'
              USING HINT = 'To restore a dump of the data alone, use pg_restore --disable-triggers.';
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended('fermata.audit ' || NEW.run_id, 0));
    SELECT * INTO latest FROM fermata.audit WHERE run_id = NEW.run_id ORDER BY seq DESC LIMIT 1;
    IF NOT FOUND THEN
        IF NEW.event <> 'requested' THEN
            INSERT INTO fermata.audit (tenant, run_id, event, actor, details)
            VALUES (NEW.tenant, NEW.run_id, 'requested',
                    (SELECT requester FROM fermata.runs WHERE tenant = NEW.tenant AND id = NEW.run_id), '{}');
            SELECT * INTO latest FROM fermata.audit WHERE run_id = NEW.run_id;
        ELSE
            SELECT id, model, created_at INTO opening
              FROM fermata.responses WHERE tenant = NEW.tenant AND run_id = NEW.run_id ORDER BY created_at, id LIMIT 1;
            NEW.response_id := coalesce(opening.id, NEW.response_id);
            NEW.details := json_strip_nulls(json_build_object(
                'model', opening.model,
                'requested_at', to_char(opening.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')));
        END IF;
    ELSIF NEW.event = 'requested' THEN
        RETURN NULL;
    END IF;
    IF latest.tenant <> NEW.tenant THEN
        RAISE EXCEPTION 'run % belongs to another tenant', NEW.run_id;
    END IF;
    NEW.seq := coalesce(latest.seq, 0) + 1;
    NEW.at := clock_timestamp();
    NEW.previous := coalesce(
        latest.hash, sha256(convert_to(json_build_array(NEW.tenant, NEW.run_id)::text, 'UTF8')));
    NEW.hash := fermata.audit_hash(NEW);
    RETURN NEW;
END
$$;
CREATE TRIGGER audit_chain BEFORE INSERT ON fermata.audit FOR EACH ROW EXECUTE FUNCTION fermata.audit_chain();

CREATE FUNCTION fermata.audit_stands() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'fermata.audit is append-only: % is refused', TG_OP USING ERRCODE = 'insufficient_privilege';
END
$$;
CREATE TRIGGER audit_stands BEFORE UPDATE OR DELETE OR TRUNCATE ON fermata.audit
    FOR EACH STATEMENT EXECUTE FUNCTION fermata.audit_stands();
-- For whoever sets session_replication_role as well.
ALTER TABLE fermata.audit ENABLE ALWAYS TRIGGER audit_stands;

-- One row, for statements and for callers of their own; the number it got. `requester` is who started the run,
-- for the first row of a run that has no row in fermata.runs yet.
CREATE FUNCTION fermata.record(
    tenant text, run_id text, event text, response_id text, actor text, details json,
    call_id text DEFAULT NULL, requester text DEFAULT NULL
) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    written integer;
BEGIN
    IF record.requester IS NOT NULL THEN
        INSERT INTO fermata.audit (tenant, run_id, event, actor, details)
        VALUES (record.tenant, record.run_id, 'requested', record.requester, '{}');
    END IF;
    INSERT INTO fermata.audit (tenant, run_id, event, response_id, call_id, actor, details)
    VALUES (record.tenant, record.run_id, record.event, record.response_id, record.call_id, record.actor,
            record.details)
    RETURNING seq INTO written;
    RETURN written;
END
$$;
