"""Speed, coverage and comparisons: each file says what it measures; results are in results/."""
