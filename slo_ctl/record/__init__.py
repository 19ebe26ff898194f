"""What was: history and metrics."""
