-- Portable SQL: ids TEXT, times BIGINT microseconds since 1970 UTC, flags 0/1, JSON TEXT.
-- This file is append-only history: never edit it once released, add the next number.

CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    body TEXT NOT NULL
);

CREATE TABLE users (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    role TEXT NOT NULL,
    -- The host's uid that the socket's peer had when the user was first seen.
    uid BIGINT UNIQUE,
    created_at BIGINT NOT NULL
);

CREATE TABLE ssh_keys (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    -- Kind and base64 body: one key leads to one person.
    identity TEXT NOT NULL UNIQUE,
    comment TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE INDEX ssh_keys_by_user ON ssh_keys (user_id);

CREATE TABLE images (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    body TEXT NOT NULL,
    created_at BIGINT NOT NULL
);
CREATE INDEX images_by_name ON images (name, created_at);

CREATE TABLE vms (
    id TEXT PRIMARY KEY,
    owner_id TEXT NOT NULL REFERENCES users (id),
    name TEXT NOT NULL,
    spec TEXT NOT NULL,
    placement TEXT NOT NULL,
    desired TEXT NOT NULL,
    generation BIGINT NOT NULL,
    restart_requested BIGINT,
    is_force_stop BIGINT NOT NULL DEFAULT 0,
    stop_asked_at BIGINT,
    started_at BIGINT,
    -- The host's boot id of the last start: a machine found off under another one was not stopped by its guest.
    started_boot TEXT,
    tags TEXT NOT NULL,
    trouble TEXT,
    attempts BIGINT NOT NULL DEFAULT 0,
    next_try BIGINT,
    first_boot TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    undelete_until BIGINT,
    -- Copies of values in the JSON above, for keys and sums.
    image_id TEXT REFERENCES images (id),
    mac TEXT NOT NULL UNIQUE,
    address TEXT NOT NULL UNIQUE,
    vcpus BIGINT NOT NULL,
    memory_mib BIGINT NOT NULL,
    disk_mib BIGINT NOT NULL
);
-- A deleted machine gives its name free at once.
CREATE UNIQUE INDEX vms_by_name ON vms (owner_id, name) WHERE undelete_until IS NULL;

CREATE TABLE vm_secrets (
    vm_id TEXT PRIMARY KEY REFERENCES vms (id),
    host_key_private TEXT NOT NULL,
    host_key_public TEXT NOT NULL,
    login_key_private TEXT NOT NULL,
    login_key_public TEXT NOT NULL
);

-- A card is used whole or in slices, never both: leases point here by (gpu_id, kind).
CREATE TABLE gpu_use (
    gpu_id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    UNIQUE (gpu_id, kind)
);

CREATE TABLE gpu_leases (
    id TEXT PRIMARY KEY,
    gpu_id TEXT NOT NULL,
    kind TEXT NOT NULL,
    -- Equal for the same partition: no row means free, so a partition can never be held twice.
    partition_key TEXT NOT NULL UNIQUE,
    body TEXT NOT NULL,
    vm_id TEXT NOT NULL REFERENCES vms (id),
    generation BIGINT NOT NULL,
    state TEXT NOT NULL,
    FOREIGN KEY (gpu_id, kind) REFERENCES gpu_use (gpu_id, kind)
);

CREATE TABLE audit (
    id TEXT PRIMARY KEY,
    at BIGINT NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    vm_id TEXT,
    generation BIGINT,
    request_id TEXT,
    outcome TEXT NOT NULL,
    detail TEXT NOT NULL,
    finished_at BIGINT
);
CREATE INDEX audit_pending ON audit (outcome, vm_id);
CREATE INDEX audit_by_time ON audit (at);
