"""Defects that users or outside examiners met, each by name, through the doors where they met them.

Each test fails on the commit before its fix. So it imports nothing that is newer than the defect.

    python -m tests regressions                    each defect: gone, or back
    python -m tests regressions --list             each defect, with what was seen
    python -m tests regressions --before COMMIT    the same tests with the product of that commit: each defect has
                                                   to show there (`before.py`); --keep writes DEFECTS.md
"""
