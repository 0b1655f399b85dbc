"""What the tests of the worker share: a commanding side on plain NATS, stores in memory, faults on demand."""
