-- Whom an ensemble was trained on, to know them again: keyed hashes of their ids, 16 bytes each, sorted.
-- One value and not a row for each: a million people are one write of 16 MB. Ensembles of blocks, and those
-- that were attached before this migration, have none.
CREATE TABLE people (
  model  TEXT PRIMARY KEY REFERENCES model (fingerprint),
  hashes BLOB NOT NULL CHECK (length(hashes) % 16 = 0)
) STRICT;

CREATE TRIGGER people_are_never_changed BEFORE UPDATE ON people
  BEGIN SELECT RAISE (ABORT, 'people are never changed'); END;
CREATE TRIGGER people_are_never_removed BEFORE DELETE ON people
  BEGIN SELECT RAISE (ABORT, 'people are never forgotten'); END;
