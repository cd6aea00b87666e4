"""Benchmark scenes; results/ holds what `splatscope bench` wrote."""
