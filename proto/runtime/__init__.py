"""Implements the ports on a real machine: clock, network, disk, configuration, logs and metrics."""
