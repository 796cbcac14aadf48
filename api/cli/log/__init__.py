"""`rollbook log`: creates, writes, reads and manages logs."""
