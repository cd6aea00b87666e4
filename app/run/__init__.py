"""Plans, runs and describes a training run."""
