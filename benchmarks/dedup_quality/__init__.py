"""How well duplicates are found, measured on a labelled set of real photographs; docs/explanation/duplicates.md shows the tables.

What counts as a copy: the same picture, re-encoded, resized as a whole, or stored turned with an orientation tag. No copy:
another frame (shifted, zoomed, rotated, from another angle), a crop, other colours, an object in another colour, and any two
pictures that were made separately, however alike. Everything is made from fixed seeds; nothing of it is committed.
"""
