"""History, metrics and stored SLOs."""
