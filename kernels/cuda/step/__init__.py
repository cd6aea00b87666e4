"""Plans what a training step adds to the two passes: photographs, loss, Adam."""
