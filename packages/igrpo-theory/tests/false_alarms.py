"""How often the statistical tests of this package may fail by chance, all of them together.

Seeds are fixed, so that a run always ends the same way. The rate is what fresh seeds, or another order of draws, would
give: a test of something true fails with a chance of at most LEVEL, over all the numbers that it compares.
"""

TOTAL = 1e-6
"""Chance that a run of all tests fails although everything is right."""
SHARES = 1000
LEVEL = TOTAL / SHARES
"""Of one check; the fixture `alpha`. Rows of `igrpo-theory verify` have the same level."""
ROWS = 60
"""Statistical rows of `verify` that examples and tests check, and examples that grow trees, at most."""
MOST_CHECKS = 250
"""Tests that ask for `alpha`, and those rows. The other shares are a reserve for tails that are only nearly normal."""
