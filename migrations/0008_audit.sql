-- The record becomes append-only, each entry bound to all before it by its hash. Nothing updates or deletes its rows.
CREATE TABLE record (
    -- From 1 on without a gap.
    seq BIGINT NOT NULL PRIMARY KEY,
    at BIGINT NOT NULL,
    operation TEXT NOT NULL,
    -- 'begin' and later 'end', or 'whole'.
    half TEXT NOT NULL,
    actor TEXT NOT NULL,
    actor_id TEXT,
    via TEXT NOT NULL,
    address TEXT,
    request_id TEXT,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    vm_id TEXT,
    outcome TEXT NOT NULL,
    detail TEXT NOT NULL,
    -- SHA-256 over the hash before it and all of the above; src/model/record.rs.
    hash TEXT NOT NULL
);
CREATE INDEX record_by_operation ON record (operation);
CREATE INDEX record_by_request ON record (request_id);
CREATE INDEX record_by_actor ON record (actor_id, seq);
CREATE INDEX record_by_vm ON record (vm_id, seq);
CREATE INDEX record_by_action ON record (action, seq);
CREATE INDEX record_by_time ON record (at);

-- The one row with the last entry's number and hash, read and written under the write lock.
CREATE TABLE record_tip (
    id BIGINT PRIMARY KEY,
    seq BIGINT NOT NULL,
    hash TEXT NOT NULL
);
INSERT INTO record_tip (id, seq, hash)
VALUES (1, 0, '0000000000000000000000000000000000000000000000000000000000000000');

-- Operations that have begun and not ended.
CREATE TABLE record_pending (
    operation TEXT PRIMARY KEY,
    -- Of its first half.
    seq BIGINT NOT NULL,
    vm_id TEXT NOT NULL,
    generation BIGINT NOT NULL
);
CREATE INDEX record_pending_by_vm ON record_pending (vm_id, generation);

-- Signed heads, one line each; src/model/record/head.rs.
CREATE TABLE record_heads (
    seq BIGINT PRIMARY KEY,
    head TEXT NOT NULL
);

-- What was written before there was a chain. The next start takes it over into the record, and leaves this empty.
ALTER TABLE audit RENAME TO audit_unchained;
