"""Holds the CUDA backend. Read `backend.py` first.

`Renderer.forward` in `renderer.py` draws a frame, `plan_pass` in `plan/planner.py` lists its stages, and
`TrainingStep._prepare` in `training_step.py` lists those of a training step.
"""
