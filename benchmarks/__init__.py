"""Benchmarks: figures that anyone can recompute, never a timed test."""
