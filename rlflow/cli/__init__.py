"""The command line, with one file per command. It may import every package, and no package may import it."""
