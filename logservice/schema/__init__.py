"""Generated messages of what log servers store."""
