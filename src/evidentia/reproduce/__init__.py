"""The paper, experiment by experiment."""
