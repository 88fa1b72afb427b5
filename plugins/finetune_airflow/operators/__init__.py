"""Operators: one task of a recipe's DAG each."""
