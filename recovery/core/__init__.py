"""The rules of repair: which copies are lost or short, when a repair is due, and how it is made."""
