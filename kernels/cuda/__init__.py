"""The CUDA backend. Read `backend.py` first, then `renderer.py` and `training_step.py`."""
