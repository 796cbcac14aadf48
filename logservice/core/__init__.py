"""The rules of logs: ownership, sequencing, segments, retention, formats."""
