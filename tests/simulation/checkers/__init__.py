"""What judges a run afterwards, from its history and from what the machines still hold."""
