"""From answers to numbers: runs, comparisons of two runs, the choice of a strength."""
