"""``dutyfree bench ltx2``: what is measured (:mod:`.run`), in which processes, and what is printed and drawn of it.

Nothing is imported here: a worker registers its operators before anything imports :mod:`dutyfree.ops`.
"""
