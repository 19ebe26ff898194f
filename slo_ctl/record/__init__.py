"""History and metrics."""
