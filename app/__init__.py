"""The command line, the engine thread and the benchmark: everything that ties the layers together."""
