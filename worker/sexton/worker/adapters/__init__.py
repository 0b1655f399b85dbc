"""Adapters: NATS, object stores, Redis and summarisers behind the worker's ports."""
