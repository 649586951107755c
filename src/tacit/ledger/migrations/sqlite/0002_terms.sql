-- Terms and attachments are for good; only a new partition changes how many parts there are.
CREATE TRIGGER domain_is_never_removed BEFORE DELETE ON domain
  BEGIN SELECT RAISE (ABORT, 'a domain is never removed'); END;
CREATE TRIGGER terms_are_never_changed BEFORE UPDATE OF id, renyi_order, mechanism, unit, created ON domain
  BEGIN SELECT RAISE (ABORT, 'terms are never changed'); END;
CREATE TRIGGER model_is_never_changed BEFORE UPDATE ON model
  BEGIN SELECT RAISE (ABORT, 'a model never changes its people'); END;
CREATE TRIGGER model_is_never_removed BEFORE DELETE ON model
  BEGIN SELECT RAISE (ABORT, 'a model never leaves its people'); END;
