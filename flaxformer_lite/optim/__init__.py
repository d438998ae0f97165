"""Optimizers and learning-rate schedules, by Optax."""
