"""Helpers of the tests: waiting with a bound, and child processes."""
