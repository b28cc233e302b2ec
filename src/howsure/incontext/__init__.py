"""A regressor that is trained once on simulated tables and reads a new table as context."""
