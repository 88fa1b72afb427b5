"""Detached jobs on a machine, and the ways to reach it."""
