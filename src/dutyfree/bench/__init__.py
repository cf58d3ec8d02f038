"""Benchmarks of the package: what a call costs, measured beside what it replaces."""
