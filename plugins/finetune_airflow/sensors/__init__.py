"""Sensors: what runs beside a stage and watches it."""
