"""`rollbook spark`: exports, audits, mirrors and restores logs with Spark."""
