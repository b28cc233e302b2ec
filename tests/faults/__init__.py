"""Checks that a stranger would try, too long for every test run: `make faults` runs all of them and prints figures."""
