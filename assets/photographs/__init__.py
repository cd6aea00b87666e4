"""Finds, decodes, turns, undistorts and masks photographs."""
