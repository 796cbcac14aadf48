"""What the dashboard computes and prints, without a server."""
