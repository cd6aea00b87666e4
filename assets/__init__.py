"""Everything that comes from or goes to disk: splat files, captures, images, the demo scene."""
