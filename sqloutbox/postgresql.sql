-- The outbox of lowkiq. These statements may be repeated.
CREATE SEQUENCE IF NOT EXISTS lowkiq_outbox_seq;

CREATE TABLE IF NOT EXISTS lowkiq_outbox (
    seq        bigint   PRIMARY KEY, -- from lowkiq_outbox_add; the score of the payload
    queue      text     NOT NULL,
    id         text     NOT NULL,
    payload    bytea    NOT NULL,
    header     text     NOT NULL DEFAULT '', -- a JSON object of strings
    perform_at bigint   NOT NULL DEFAULT 0,  -- microseconds since 1970
    urgent     smallint NOT NULL DEFAULT 0,
    added_at   bigint   NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000)::bigint, -- ms since 1970
    retry_at   bigint   NOT NULL DEFAULT 0,  -- ms since 1970, of a refused row; -1 if it was set aside
    tries      integer  NOT NULL DEFAULT 0,  -- refusals
    error      text     NOT NULL DEFAULT ''  -- the last refusal
);

-- Rows that were not set aside, by queue.
CREATE INDEX IF NOT EXISTS lowkiq_outbox_open ON lowkiq_outbox (queue, seq) WHERE retry_at >= 0;

-- Refused rows, which later rows of their id wait for.
CREATE INDEX IF NOT EXISTS lowkiq_outbox_refused ON lowkiq_outbox (queue, id, seq) WHERE retry_at > 0;

-- The relay that works, until when (ms since 1970).
CREATE TABLE IF NOT EXISTS lowkiq_outbox_relay (
    one      integer PRIMARY KEY CHECK (one = 1),
    holder   text    NOT NULL,
    held_to bigint  NOT NULL
);
INSERT INTO lowkiq_outbox_relay (one, holder, held_to) VALUES (1, '', 0) ON CONFLICT DO NOTHING;

CREATE OR REPLACE VIEW lowkiq_outbox_clock AS
    SELECT (extract(epoch FROM statement_timestamp()) * 1000)::bigint AS ms;

-- A sequence gives numbers in the order of inserts, and transactions commit in another order. The lock lets the
-- transactions that add to an id commit in the order of their numbers. So whoever sees a row of an id sees all rows
-- with smaller numbers that will ever be there.
CREATE OR REPLACE FUNCTION lowkiq_outbox_add() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(NEW.queue || '/' || NEW.id, 7465));
    NEW.seq := nextval('lowkiq_outbox_seq');
    RETURN NEW;
END $$;
DROP TRIGGER IF EXISTS lowkiq_outbox_add ON lowkiq_outbox;
CREATE TRIGGER lowkiq_outbox_add BEFORE INSERT ON lowkiq_outbox FOR EACH ROW EXECUTE FUNCTION lowkiq_outbox_add();
