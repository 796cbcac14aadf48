"""Programs that use Rollbook, to copy from."""
