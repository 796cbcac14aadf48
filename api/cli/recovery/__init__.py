"""`rollbook recovery`: heals bookies, steers re-replication and shows what is under way."""
