"""Triggers: what waits for a machine without holding a worker."""
