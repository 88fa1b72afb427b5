"""Training events, and what they mean."""
