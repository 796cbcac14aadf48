"""`rollbook recovery`: heals bookies, controls re-replication and shows its state."""
