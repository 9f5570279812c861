"""The roof, which alone sees all packages: the command line, one file a command, and the stages that commands are made
of.
"""
