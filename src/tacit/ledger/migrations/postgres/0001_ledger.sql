-- One row per set of people. Its terms are also the first entry of its chain.
CREATE TABLE domain (
  id           TEXT PRIMARY KEY,
  renyi_order  DOUBLE PRECISION NOT NULL CHECK (renyi_order > 1),
  parts        BIGINT NOT NULL CHECK (parts >= 1),
  partitioning TEXT NOT NULL,
  mechanism    TEXT NOT NULL,
  unit         TEXT NOT NULL CHECK (unit IN ('user', 'block')),
  created      TEXT NOT NULL
);

-- The end of each domain's chain; PostgreSQL locks this row for a step.
CREATE TABLE head (
  domain  TEXT PRIMARY KEY REFERENCES domain (id),
  seq     BIGINT NOT NULL,
  hash    BYTEA NOT NULL,
  private BIGINT NOT NULL DEFAULT 0,                -- answers so far, so that nobody has to count them
  public  BIGINT NOT NULL DEFAULT 0,
  stopped BIGINT                                    -- the entry that stopped it; never cleared
);

-- Billionths of a nat. The database itself refuses to overspend.
CREATE TABLE balance (
  domain TEXT NOT NULL REFERENCES domain (id),
  part   BIGINT NOT NULL,
  budget BIGINT NOT NULL CHECK (budget > 0),
  spent  BIGINT NOT NULL DEFAULT 0 CHECK (spent >= 0),
  leased BIGINT NOT NULL DEFAULT 0 CHECK (leased >= 0),
  PRIMARY KEY (domain, part),
  CHECK (spent + leased <= budget)
);

-- Append-only: every answer with its charge, and whatever else moved a balance.
CREATE TABLE entry (
  domain  TEXT NOT NULL REFERENCES domain (id),
  seq     BIGINT NOT NULL,
  kind    TEXT NOT NULL,
  made    TEXT NOT NULL,
  request TEXT,
  step    BIGINT,
  tenant  TEXT,
  token   BIGINT,
  charges BYTEA NOT NULL,                             -- one little-endian int64 per part
  note    TEXT NOT NULL,
  hash    BYTEA NOT NULL,
  PRIMARY KEY (domain, seq)
);
CREATE UNIQUE INDEX entry_answer ON entry (domain, request, step) WHERE request IS NOT NULL;
CREATE INDEX entry_event ON entry (domain, seq) WHERE kind NOT IN ('token', 'public');

CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
  BEGIN RAISE EXCEPTION 'what the ledger has said is never changed' USING ERRCODE = 'check_violation'; END $$;
CREATE TRIGGER entry_is_never_changed BEFORE UPDATE OR DELETE ON entry
  FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER entry_is_never_emptied BEFORE TRUNCATE ON entry
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
CREATE TRIGGER stop_is_for_good BEFORE UPDATE OF stopped ON head FOR EACH ROW
  WHEN (OLD.stopped IS NOT NULL AND NEW.stopped IS DISTINCT FROM OLD.stopped)
  EXECUTE FUNCTION refuse_change();
CREATE TRIGGER head_is_never_removed BEFORE DELETE ON head
  FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER nothing_is_given_back BEFORE UPDATE ON balance FOR EACH ROW
  WHEN (NEW.spent < OLD.spent OR NEW.budget <> OLD.budget)
  EXECUTE FUNCTION refuse_change();

-- Which trained ensembles answer from which domain, under which partition; one cannot answer from two.
CREATE TABLE model (
  fingerprint  TEXT PRIMARY KEY,
  domain       TEXT NOT NULL REFERENCES domain (id),
  partitioning TEXT NOT NULL,
  corpus       BYTEA NOT NULL,                        -- keyed hash of its text, to know the same people again
  name         TEXT NOT NULL,
  attached     BIGINT NOT NULL                      -- the entry that says so
);

CREATE TABLE tenant (
  name        TEXT PRIMARY KEY,
  tokens_most BIGINT CHECK (tokens_most >= 0),      -- NULL: no limit
  tokens_used BIGINT NOT NULL DEFAULT 0 CHECK (tokens_used >= 0)
);

CREATE TABLE api_key (
  id      TEXT PRIMARY KEY,
  hash    BYTEA NOT NULL UNIQUE,                      -- the key itself is nowhere
  tenant  TEXT NOT NULL REFERENCES tenant (name),
  created TEXT NOT NULL,
  revoked TEXT
);

-- What a client's Idempotency-Key stands for. Of the request only a keyed hash is kept.
CREATE TABLE request (
  tenant  TEXT NOT NULL REFERENCES tenant (name),
  key     BYTEA NOT NULL,
  body    BYTEA NOT NULL,
  id      TEXT NOT NULL UNIQUE,
  created TEXT NOT NULL,
  PRIMARY KEY (tenant, key)
);

CREATE TABLE secret (
  name  TEXT PRIMARY KEY,
  value BYTEA NOT NULL
);
