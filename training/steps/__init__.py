"""Takes a training step, on the host or on the device."""
