"""Owns the model, the backend and the trainer in one thread, and answers the window."""
