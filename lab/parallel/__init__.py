"""One profile from several nodes with devices of the same kind (Machado et al., parallel SeRRa)."""
