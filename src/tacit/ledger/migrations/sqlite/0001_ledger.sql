-- One row per set of people. Its terms are also the first entry of its chain.
CREATE TABLE domain (
  id           TEXT PRIMARY KEY,
  renyi_order  REAL NOT NULL CHECK (renyi_order > 1),
  parts        INTEGER NOT NULL CHECK (parts >= 1),
  partitioning TEXT NOT NULL,
  mechanism    TEXT NOT NULL,
  unit         TEXT NOT NULL CHECK (unit IN ('user', 'block')),
  created      TEXT NOT NULL
) STRICT;

-- The end of each domain's chain; PostgreSQL locks this row for a step.
CREATE TABLE head (
  domain  TEXT PRIMARY KEY REFERENCES domain (id),
  seq     INTEGER NOT NULL,
  hash    BLOB NOT NULL,
  private INTEGER NOT NULL DEFAULT 0,                -- answers so far, so that nobody has to count them
  public  INTEGER NOT NULL DEFAULT 0,
  stopped INTEGER                                    -- the entry that stopped it; never cleared
) STRICT;

-- Billionths of a nat. The database itself refuses to overspend.
CREATE TABLE balance (
  domain TEXT NOT NULL REFERENCES domain (id),
  part   INTEGER NOT NULL,
  budget INTEGER NOT NULL CHECK (budget > 0),
  spent  INTEGER NOT NULL DEFAULT 0 CHECK (spent >= 0),
  leased INTEGER NOT NULL DEFAULT 0 CHECK (leased >= 0),
  PRIMARY KEY (domain, part),
  CHECK (spent + leased <= budget)
) STRICT, WITHOUT ROWID;

-- Append-only: every answer with its charge, and whatever else moved a balance.
CREATE TABLE entry (
  domain  TEXT NOT NULL REFERENCES domain (id),
  seq     INTEGER NOT NULL,
  kind    TEXT NOT NULL,
  made    TEXT NOT NULL,
  request TEXT,
  step    INTEGER,
  tenant  TEXT,
  token   INTEGER,
  charges BLOB NOT NULL,                             -- one little-endian int64 per part
  note    TEXT NOT NULL,
  hash    BLOB NOT NULL,
  PRIMARY KEY (domain, seq)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX entry_answer ON entry (domain, request, step) WHERE request IS NOT NULL;
CREATE INDEX entry_event ON entry (domain, seq) WHERE kind NOT IN ('token', 'public');

CREATE TRIGGER entry_is_never_changed BEFORE UPDATE ON entry
  BEGIN SELECT RAISE (ABORT, 'entries are never changed'); END;
CREATE TRIGGER entry_is_never_removed BEFORE DELETE ON entry
  BEGIN SELECT RAISE (ABORT, 'entries are never removed'); END;
CREATE TRIGGER stop_is_for_good BEFORE UPDATE OF stopped ON head
  WHEN OLD.stopped IS NOT NULL AND NEW.stopped IS NOT OLD.stopped
  BEGIN SELECT RAISE (ABORT, 'a stop is never taken back'); END;
CREATE TRIGGER head_is_never_removed BEFORE DELETE ON head
  BEGIN SELECT RAISE (ABORT, 'a chain is never cut'); END;
CREATE TRIGGER nothing_is_given_back BEFORE UPDATE ON balance
  WHEN NEW.spent < OLD.spent OR NEW.budget <> OLD.budget
  BEGIN SELECT RAISE (ABORT, 'nothing is given back'); END;

-- Which trained ensembles answer from which domain, under which partition; one cannot answer from two.
CREATE TABLE model (
  fingerprint  TEXT PRIMARY KEY,
  domain       TEXT NOT NULL REFERENCES domain (id),
  partitioning TEXT NOT NULL,
  corpus       BLOB NOT NULL,                        -- keyed hash of its text, to know the same people again
  name         TEXT NOT NULL,
  attached     INTEGER NOT NULL                      -- the entry that says so
) STRICT;

CREATE TABLE tenant (
  name        TEXT PRIMARY KEY,
  tokens_most INTEGER CHECK (tokens_most >= 0),      -- NULL: no limit
  tokens_used INTEGER NOT NULL DEFAULT 0 CHECK (tokens_used >= 0)
) STRICT;

CREATE TABLE api_key (
  id      TEXT PRIMARY KEY,
  hash    BLOB NOT NULL UNIQUE,                      -- the key itself is nowhere
  tenant  TEXT NOT NULL REFERENCES tenant (name),
  created TEXT NOT NULL,
  revoked TEXT
) STRICT;

-- What a client's Idempotency-Key stands for. Of the request only a keyed hash is kept.
CREATE TABLE request (
  tenant  TEXT NOT NULL REFERENCES tenant (name),
  key     BLOB NOT NULL,
  body    BLOB NOT NULL,
  id      TEXT NOT NULL UNIQUE,
  created TEXT NOT NULL,
  PRIMARY KEY (tenant, key)
) STRICT;

CREATE TABLE secret (
  name  TEXT PRIMARY KEY,
  value BLOB NOT NULL
) STRICT;
