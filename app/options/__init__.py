"""Declares what each subcommand takes. Cheap to import: `--help` needs it."""
