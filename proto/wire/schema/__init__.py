"""The generated code for the messages of BookKeeper's protocol and metadata."""
