-- Whom an ensemble was trained on, to know them again: keyed hashes of their ids, 16 bytes each, sorted.
-- One value and not a row for each: a million people are one write of 16 MB. Ensembles of blocks, and those
-- that were attached before this migration, have none.
CREATE TABLE people (
  model  TEXT PRIMARY KEY REFERENCES model (fingerprint),
  hashes BYTEA NOT NULL CHECK (length(hashes) % 16 = 0)
);

CREATE TRIGGER people_are_never_changed BEFORE UPDATE OR DELETE ON people
  FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER people_are_never_emptied BEFORE TRUNCATE ON people
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
