"""Depth from one image: Table S1, Fig. 4 to 6 and S4 to S7."""
