-- What a lease holds of its card: memory, and the part in millionths. Of vGPUs that are leased already it is not known.
ALTER TABLE gpu_leases ADD COLUMN memory_mib BIGINT NOT NULL DEFAULT 0;
ALTER TABLE gpu_leases ADD COLUMN share_ppm BIGINT NOT NULL DEFAULT 1000000;
UPDATE gpu_leases SET share_ppm = 0 WHERE kind = 'slice';

-- Who held which part of which card, and when. Rows are added and ended, never removed: machines, leases and cards that
-- they name may be gone.
CREATE TABLE gpu_time (
    id TEXT PRIMARY KEY,
    lease_id TEXT NOT NULL,
    vm_id TEXT NOT NULL,
    owner_id TEXT NOT NULL,
    team_id TEXT,
    gpu_id TEXT NOT NULL,
    share_ppm BIGINT NOT NULL,
    began_at BIGINT NOT NULL,
    -- None while it is held; never before began_at.
    ended_at BIGINT
);
CREATE UNIQUE INDEX gpu_time_open ON gpu_time (lease_id) WHERE ended_at IS NULL;
CREATE INDEX gpu_time_by_owner ON gpu_time (owner_id, began_at);
CREATE INDEX gpu_time_by_team ON gpu_time (team_id, began_at);
