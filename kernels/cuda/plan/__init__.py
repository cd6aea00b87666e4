"""Plans a pass as a list of kernel launches: one file a stage, put together in `planner.py`."""
