"""Experiments on small problems whose truth is known: Fig. 2, 3, S1, S2 and S3."""
