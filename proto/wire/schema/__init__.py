"""Generated messages of BookKeeper's protocol and metadata."""
