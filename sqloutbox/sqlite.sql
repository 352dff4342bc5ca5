-- The outbox of lowkiq. These statements may be repeated. A database has one writer at a time, so transactions commit
-- in the order of their rows' numbers. AUTOINCREMENT uses no number twice.
CREATE TABLE IF NOT EXISTS lowkiq_outbox (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT, -- the score of the payload
    queue      TEXT    NOT NULL,
    id         TEXT    NOT NULL,
    payload    BLOB    NOT NULL,
    header     TEXT    NOT NULL DEFAULT '', -- a JSON object of strings
    perform_at INTEGER NOT NULL DEFAULT 0,  -- microseconds since 1970
    urgent     INTEGER NOT NULL DEFAULT 0,
    added_at   INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)), -- ms since 1970
    retry_at   INTEGER NOT NULL DEFAULT 0,  -- ms since 1970, of a refused row; -1 if it was set aside
    tries      INTEGER NOT NULL DEFAULT 0,  -- refusals
    error      TEXT    NOT NULL DEFAULT ''  -- the last refusal
);

-- Rows that were not set aside, by queue.
CREATE INDEX IF NOT EXISTS lowkiq_outbox_open ON lowkiq_outbox (queue, seq) WHERE retry_at >= 0;

-- Refused rows, which later rows of their id wait for.
CREATE INDEX IF NOT EXISTS lowkiq_outbox_refused ON lowkiq_outbox (queue, id, seq) WHERE retry_at > 0;

-- The relay that works, until when (ms since 1970).
CREATE TABLE IF NOT EXISTS lowkiq_outbox_relay (
    one      INTEGER PRIMARY KEY CHECK (one = 1),
    holder   TEXT    NOT NULL,
    held_to INTEGER NOT NULL
);
INSERT INTO lowkiq_outbox_relay (one, holder, held_to) VALUES (1, '', 0) ON CONFLICT DO NOTHING;

CREATE VIEW IF NOT EXISTS lowkiq_outbox_clock AS
    SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) AS ms;
