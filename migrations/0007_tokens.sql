-- API tokens. Only the digest of a token is kept: whoever reads this file gets in nowhere by it.
CREATE TABLE tokens (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    -- 'personal', 'service' or 'session'.
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    -- SHA-256 of the whole token, hex.
    digest TEXT NOT NULL UNIQUE,
    -- Words with commas between them.
    scopes TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    -- Noted about once a minute.
    last_used_at BIGINT,
    last_used_from TEXT,
    UNIQUE (user_id, name)
);
