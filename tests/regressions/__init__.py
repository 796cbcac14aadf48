"""Defects that users or outside examiners met, each by name, through the doors where they met them.

Each test fails on the commit before its fix. So it imports nothing that is newer than the defect.
"""
