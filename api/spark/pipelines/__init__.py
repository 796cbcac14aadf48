"""Jobs over logs and archives: export, audit, mirror, restore."""
