"""Schedules tiles and chunks: rules, calibrated costs, simulation, recorded timelines."""
