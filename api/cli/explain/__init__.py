"""`rollbook explain`: what is going on with a log, and why."""
