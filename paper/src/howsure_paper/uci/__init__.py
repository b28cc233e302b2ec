"""Table 1: five methods on nine UCI sets."""
