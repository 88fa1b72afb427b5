"""Airflow on this machine, and the demo that follows one run through it."""
