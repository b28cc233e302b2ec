"""Experts of a table model that are not networks."""
