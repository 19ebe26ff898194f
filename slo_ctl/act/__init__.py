"""Applying decisions: actuators, the keeper of settings and the journal."""
