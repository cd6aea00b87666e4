"""Carries out the subcommands, one module each."""
