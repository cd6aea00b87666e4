"""Measures speed: a module for each subcommand of `splatscope bench`, and folders for the parts they share."""
