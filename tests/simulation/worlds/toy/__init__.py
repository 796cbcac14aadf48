"""A small quorum protocol on the real ports: what the simulator cuts its teeth on.

One ledger, five bookies, one writer, some recoveries, one reader at the tail. It follows the rules
of the real ledger protocol and leaves out what they do not need. `mutants` breaks it on purpose: a
simulator that does not find these bugs would not find ours.
"""
