"""The command `rollbook`: one folder for each group of commands."""
