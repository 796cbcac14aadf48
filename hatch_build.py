"""The import root of editable installs, and the `rollbook/__init__.py` of wheels.

The top-level folders are `ledger/`, `proto/` and so on; they are imported as `rollbook.ledger`,
`rollbook.proto`. A wheel maps them (pyproject.toml); an editable install puts `.import-root/` on
sys.path, a folder of links that this hook makes and that git ignores.
"""

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_NAMES = ("aio", "errors", "spark", "wal")  # `import rollbook.NAME`


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]  # Generic only in its stubs.
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        at_root = {  # What `import rollbook` shows, and that it has types.
            root / "api" / "package_init.py": "rollbook/__init__.py",
            **{root / "api" / f"public_{name}.py": f"rollbook/{name}.py" for name in _NAMES},
            root / "api" / "py.typed": "rollbook/py.typed",
        }
        if version != "editable":
            for file, target in at_root.items():
                build_data["force_include"][str(file)] = target
            return
        for folder, target in self.build_config.target_config["sources"].items():
            link_to(root / folder, root / ".import-root" / target)
        for file, target in at_root.items():
            link_to(file, root / ".import-root" / target)


def link_to(source: Path, link: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.exists():
        return
    link.unlink(missing_ok=True)  # It leads to a file that has another name now.
    relative = os.path.relpath(source, link.parent)
    link.symlink_to(relative, target_is_directory=source.is_dir())
