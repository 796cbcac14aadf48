"""The ports on a real machine: clock, network, disk, configuration, logs, metrics."""
