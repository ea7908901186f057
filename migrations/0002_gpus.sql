-- Cards that were ever seen here: how each is known again, what was decided about it, what must be put back.
CREATE TABLE gpus (
    -- For life. Leases name it in gpu_id.
    id TEXT PRIMARY KEY,
    identity TEXT NOT NULL,
    model TEXT NOT NULL,
    memory_mib BIGINT,
    -- Stays with VFIO between machines.
    is_kept BIGINT NOT NULL DEFAULT 0,
    -- The drivers its functions had; written before the card is touched.
    former TEXT NOT NULL,
    -- Out of use: until readmitted, or until the host restarts.
    withheld TEXT,
    seen_at BIGINT NOT NULL
);
