"""``python -m dutyfree``: the `dutyfree` command, where that is not on the path (in a CMake file)."""

from dutyfree.cli import app

app(prog_name="dutyfree")
