"""The parser of command lines, absent: recipes made in code need none."""
