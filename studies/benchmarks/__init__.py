"""Benchmarks of speed, coverage and accuracy. Each module says what it measures; results are in results/."""
