"""What must be true: pure functions over immutable values. No I/O, no clock, no randomness.

The worker, the holder, the in-process buffer, the simulator and the audit all call these.
"""
