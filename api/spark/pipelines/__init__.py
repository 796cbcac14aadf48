"""Jobs that work on logs and archives: export, audit, mirror and restore."""
