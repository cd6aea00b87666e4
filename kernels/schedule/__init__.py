"""Schedules tiles and chunks: rules, simulation, recorded timelines."""
