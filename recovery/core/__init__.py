"""The rules of repair: what is lost, short, due, planned."""
