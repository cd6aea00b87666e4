"""Opens the path that a person names: splats, a capture, a run's folder."""
