"""Who is calling, and what it may do and take: tokens, certificates, rights, quotas."""
