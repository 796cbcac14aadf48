"""The rules of repair: which copies are lost or short, what is due, and how it is repaired."""
