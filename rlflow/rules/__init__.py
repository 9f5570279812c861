"""Rules: the *.rules files, their language, where they match and the graph after a rewrite.

prover/ proves them, generator/ enumerates new ones.
"""
