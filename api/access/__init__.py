"""Access control: it authenticates callers, checks their rights and quotas, and writes the audit."""
