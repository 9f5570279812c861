"""The command line, one file a command. It may import all packages; no package imports it."""
