"""What an operator runs: the worker, its stages, its embedded servers and its command line."""
