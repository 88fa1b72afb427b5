"""Machines for stages: how they are made, found and deleted."""
