"""`rollbook explain`: shows the state of a log, and the reasons for it."""
