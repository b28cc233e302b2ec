"""Experts of a table model besides its networks."""
