-- Terms and attachments are for good; only a new partition changes how many parts there are.
CREATE TRIGGER domain_is_never_removed BEFORE DELETE ON domain
  FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER terms_are_never_changed BEFORE UPDATE OF id, renyi_order, mechanism, unit, created ON domain
  FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER model_is_never_changed BEFORE UPDATE OR DELETE ON model
  FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE TRIGGER model_is_never_emptied BEFORE TRUNCATE ON model
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
