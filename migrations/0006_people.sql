-- Teams; users that have no account on this host; who is out of use.
CREATE TABLE teams (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    description TEXT NOT NULL DEFAULT '',
    -- Limits of all its machines together, and of each of its members; JSON.
    quota TEXT NOT NULL DEFAULT '{}',
    member_quota TEXT NOT NULL DEFAULT '{}',
    created_at BIGINT NOT NULL
);

CREATE TABLE team_members (
    team_id TEXT NOT NULL REFERENCES teams (id),
    user_id TEXT NOT NULL REFERENCES users (id),
    PRIMARY KEY (team_id, user_id)
);
CREATE INDEX team_members_by_user ON team_members (user_id);

-- The team that machines count for where none is named.
ALTER TABLE users ADD COLUMN default_team TEXT REFERENCES teams (id);
ALTER TABLE users ADD COLUMN full_name TEXT NOT NULL DEFAULT '';
ALTER TABLE users ADD COLUMN is_service BIGINT NOT NULL DEFAULT 0;
-- Keeps everything, may do nothing.
ALTER TABLE users ADD COLUMN suspended_at BIGINT;
ALTER TABLE users ADD COLUMN suspended_why TEXT;
-- Where the role is from: 'host' (the configuration's lists, followed at each request) or 'set' (an administrator).
ALTER TABLE users ADD COLUMN role_source TEXT NOT NULL DEFAULT 'host';
-- The host's account of the same name may take this user over at its first sight: an administrator added it by hand.
ALTER TABLE users ADD COLUMN awaits_account BIGINT NOT NULL DEFAULT 0;
-- What the name looks like: two users never share it.
ALTER TABLE users ADD COLUMN skeleton TEXT;
CREATE UNIQUE INDEX users_by_skeleton ON users (skeleton);
-- Limits in place of the usual ones; JSON.
ALTER TABLE users ADD COLUMN quota TEXT NOT NULL DEFAULT '{}';

-- The team that a machine counts for.
ALTER TABLE vms ADD COLUMN team_id TEXT REFERENCES teams (id);
CREATE INDEX vms_by_owner ON vms (owner_id, created_at);
CREATE INDEX vms_by_team ON vms (team_id);
