"""Output for people: tables, progress, plots and reports. Changes nothing."""
