"""Tests of the three layers."""
