"""Holds the CUDA backend. Read `backend.py` first.

A frame is `Renderer.forward` in `renderer.py`, its stages `plan_pass` in `plan/planner.py`, a training step
`TrainingStep._prepare` in `training_step.py`.
"""
