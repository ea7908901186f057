-- Whom login providers mean by their own name for a person.
CREATE TABLE identities (
    -- 'oidc' or 'ldap'; logins of the host are known by their uid.
    provider TEXT NOT NULL,
    -- Never changes for one person there and is nobody else's.
    subject TEXT NOT NULL,
    user_id TEXT NOT NULL REFERENCES users (id),
    created_at BIGINT NOT NULL,
    last_login_at BIGINT,
    PRIMARY KEY (provider, subject)
);
CREATE INDEX identities_by_user ON identities (user_id);
