"""Transports that reach a service."""
