"""Defects that users or outside reviewers found, each with a name and a test that reproduces it.

Each test uses the interface where the defect was found, and fails on the commit before the fix.
Therefore it imports nothing that is newer than the defect.

    python -m tests regressions                    reports each defect as gone or back
    python -m tests regressions --list             lists the defects with their symptoms
    python -m tests regressions --before COMMIT    runs the tests with the product of that commit:
                                                   each defect must show (`before.py`);
                                                   --keep writes DEFECTS.md
"""
