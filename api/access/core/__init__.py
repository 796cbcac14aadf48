"""The rules of access: rights, principals, quotas."""
