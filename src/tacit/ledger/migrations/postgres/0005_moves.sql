-- How often a balance was written, changed or not. Of a row that stays as it is, SQLite writes no page, and the
-- next token would tell by when it comes that nobody pays any more.
ALTER TABLE balance ADD COLUMN moved BIGINT NOT NULL DEFAULT 0;
