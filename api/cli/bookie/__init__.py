"""`rollbook bookie`: makes, inspects, repairs, drains and removes bookies."""
