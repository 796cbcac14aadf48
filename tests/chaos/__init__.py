"""Real clusters under kills, pauses, cut networks, slow disks and lost sessions, all at once."""
