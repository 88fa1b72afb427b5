"""The stages of a run: each begins, waits for its job and ends by evidence, whoever drives it."""
