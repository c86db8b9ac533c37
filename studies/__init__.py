"""Studies that use latentcal as anybody could: the paper's tables, its images, and benchmarks."""
