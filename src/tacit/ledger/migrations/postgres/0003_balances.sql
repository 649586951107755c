-- The tables beside the chain say what the chain says: heads are its end, and only the entry of a new
-- partition, as the last one, lets parts change and balances be replaced. No entry speaks of leases yet, so
-- that there are none.
CREATE FUNCTION last_entry(name TEXT) RETURNS entry LANGUAGE sql AS $$
  SELECT entry.* FROM tacit.head JOIN tacit.entry ON entry.domain = head.domain AND entry.seq = head.seq
  WHERE head.domain = name $$;

CREATE FUNCTION check_balance() RETURNS trigger LANGUAGE plpgsql AS $$
  DECLARE
    last tacit.entry;
    terms JSON;
    budget BIGINT;
  BEGIN
    last := tacit.last_entry(CASE TG_OP WHEN 'DELETE' THEN OLD.domain ELSE NEW.domain END);
    IF last.kind = 'repartition' OR (last.kind = 'terms' AND TG_OP = 'INSERT') THEN
      terms := last.note::json;
      IF TG_OP = 'DELETE' THEN
        IF OLD.spent <= (terms->>'carried')::bigint THEN RETURN OLD; END IF;
      ELSE
        SELECT (note::json->>'budget')::bigint INTO budget
          FROM tacit.entry WHERE domain = NEW.domain AND seq = 0;
        IF NEW.leased = 0 AND NEW.part BETWEEN 0 AND (terms->>'parts')::bigint - 1
          AND NEW.spent = COALESCE((terms->>'carried')::bigint, 0) AND NEW.budget = budget
        THEN RETURN NEW; END IF;
      END IF;
    END IF;
    RAISE EXCEPTION 'balances follow the terms and are never removed' USING ERRCODE = 'check_violation';
  END $$;
CREATE TRIGGER balances_follow_the_terms BEFORE INSERT OR DELETE ON balance
  FOR EACH ROW EXECUTE FUNCTION check_balance();
CREATE TRIGGER only_spending_moves BEFORE UPDATE ON balance FOR EACH ROW
  WHEN (NEW.domain <> OLD.domain OR NEW.part <> OLD.part OR NEW.leased <> OLD.leased)
  EXECUTE FUNCTION refuse_change();
CREATE TRIGGER balances_are_never_emptied BEFORE TRUNCATE ON balance
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE FUNCTION check_parts() RETURNS trigger LANGUAGE plpgsql AS $$
  DECLARE last tacit.entry;
  BEGIN
    last := tacit.last_entry(OLD.id);
    IF last.kind = 'repartition' THEN
      IF NEW.parts = (last.note::json->>'parts')::bigint
        AND NEW.partitioning = last.note::json->>'partition'
      THEN RETURN NEW; END IF;
    END IF;
    RAISE EXCEPTION 'parts follow the chain' USING ERRCODE = 'check_violation';
  END $$;
CREATE TRIGGER parts_follow_the_chain BEFORE UPDATE OF parts, partitioning ON domain
  FOR EACH ROW EXECUTE FUNCTION check_parts();
CREATE TRIGGER domains_are_never_emptied BEFORE TRUNCATE ON domain
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE FUNCTION check_head() RETURNS trigger LANGUAGE plpgsql AS $$
  BEGIN
    IF TG_OP = 'INSERT' THEN
      IF NEW.seq = -1 AND NEW.hash = decode(repeat('00', 32), 'hex') AND NEW.private = 0 AND NEW.public = 0
        AND NEW.stopped IS NULL AND NOT EXISTS (SELECT 1 FROM tacit.entry WHERE domain = NEW.domain)
      THEN RETURN NEW; END IF;
    ELSIF NEW.domain = OLD.domain
      AND NEW.private >= OLD.private AND NEW.public >= OLD.public
      AND NEW.private + NEW.public - OLD.private - OLD.public <= NEW.seq - OLD.seq
      AND EXISTS (SELECT 1 FROM tacit.entry WHERE domain = NEW.domain AND seq = NEW.seq AND hash = NEW.hash)
      AND NOT EXISTS (SELECT 1 FROM tacit.entry WHERE domain = NEW.domain AND seq > NEW.seq)
      AND (NEW.stopped IS NOT DISTINCT FROM OLD.stopped OR EXISTS (
        SELECT 1 FROM tacit.entry WHERE domain = NEW.domain AND seq = NEW.stopped AND kind = 'stop'))
    THEN RETURN NEW;
    END IF;
    RAISE EXCEPTION 'a head is the end of its chain' USING ERRCODE = 'check_violation';
  END $$;
CREATE TRIGGER a_head_is_the_end_of_its_chain BEFORE INSERT OR UPDATE ON head
  FOR EACH ROW EXECUTE FUNCTION check_head();
CREATE TRIGGER heads_are_never_emptied BEFORE TRUNCATE ON head
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();

CREATE TRIGGER secrets_are_never_changed BEFORE UPDATE OR DELETE ON secret
  FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER secrets_are_never_emptied BEFORE TRUNCATE ON secret
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
