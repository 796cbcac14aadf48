"""The parts of the dashboard that do no I/O."""
