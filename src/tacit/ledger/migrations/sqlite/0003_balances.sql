-- The tables beside the chain say what the chain says: heads are its end, and only the entry of a new
-- partition, as the last one, lets parts change and balances be replaced. No entry speaks of leases yet, so
-- that there are none.
CREATE TRIGGER balances_follow_the_terms BEFORE INSERT ON balance
  WHEN NEW.leased <> 0
    OR EXISTS (SELECT 1 FROM balance WHERE domain = NEW.domain AND part = NEW.part)
    OR NOT EXISTS (
      SELECT 1 FROM head JOIN entry ON entry.domain = head.domain AND entry.seq = head.seq
      WHERE head.domain = NEW.domain AND entry.kind IN ('terms', 'repartition')
        AND NEW.part BETWEEN 0 AND json_extract(entry.note, '$.parts') - 1
        AND NEW.spent = COALESCE(json_extract(entry.note, '$.carried'), 0)
        AND NEW.budget = (SELECT json_extract(terms.note, '$.budget') FROM entry AS terms
                          WHERE terms.domain = NEW.domain AND terms.seq = 0))
  BEGIN SELECT RAISE (ABORT, 'balances follow the terms'); END;
CREATE TRIGGER balances_are_never_removed BEFORE DELETE ON balance
  WHEN NOT EXISTS (
    SELECT 1 FROM head JOIN entry ON entry.domain = head.domain AND entry.seq = head.seq
    WHERE head.domain = OLD.domain AND entry.kind = 'repartition'
      AND OLD.spent <= json_extract(entry.note, '$.carried'))
  BEGIN SELECT RAISE (ABORT, 'balances are never removed'); END;
CREATE TRIGGER only_spending_moves BEFORE UPDATE ON balance
  WHEN NEW.domain <> OLD.domain OR NEW.part <> OLD.part OR NEW.leased <> OLD.leased
  BEGIN SELECT RAISE (ABORT, 'only what is spent ever moves'); END;

CREATE TRIGGER parts_follow_the_chain BEFORE UPDATE OF parts, partitioning ON domain
  WHEN NOT EXISTS (
    SELECT 1 FROM head JOIN entry ON entry.domain = head.domain AND entry.seq = head.seq
    WHERE head.domain = OLD.id AND entry.kind = 'repartition'
      AND NEW.parts = json_extract(entry.note, '$.parts')
      AND NEW.partitioning = json_extract(entry.note, '$.partition'))
  BEGIN SELECT RAISE (ABORT, 'parts follow the chain'); END;

CREATE TRIGGER a_head_begins_before_its_chain BEFORE INSERT ON head
  WHEN NEW.seq <> -1 OR NEW.hash <> zeroblob(32) OR NEW.private <> 0 OR NEW.public <> 0
    OR NEW.stopped IS NOT NULL OR EXISTS (SELECT 1 FROM entry WHERE domain = NEW.domain)
  BEGIN SELECT RAISE (ABORT, 'a head begins before its chain'); END;
CREATE TRIGGER a_head_is_the_end_of_its_chain BEFORE UPDATE ON head
  WHEN NEW.domain <> OLD.domain
    OR NEW.private < OLD.private OR NEW.public < OLD.public
    OR NEW.private + NEW.public - OLD.private - OLD.public > NEW.seq - OLD.seq
    OR NOT EXISTS (SELECT 1 FROM entry WHERE domain = NEW.domain AND seq = NEW.seq AND hash = NEW.hash)
    OR EXISTS (SELECT 1 FROM entry WHERE domain = NEW.domain AND seq > NEW.seq)
    OR (NEW.stopped IS NOT OLD.stopped AND NOT EXISTS (
      SELECT 1 FROM entry WHERE domain = NEW.domain AND seq = NEW.stopped AND kind = 'stop'))
  BEGIN SELECT RAISE (ABORT, 'a head is the end of its chain'); END;

CREATE TRIGGER secrets_are_never_changed BEFORE UPDATE ON secret
  BEGIN SELECT RAISE (ABORT, 'secrets are never changed'); END;
CREATE TRIGGER secrets_are_never_removed BEFORE DELETE ON secret
  BEGIN SELECT RAISE (ABORT, 'secrets are never removed'); END;
