"""Episodes of the real environment for learning: random and exploring play, its workers, shards on disk, logged edits.
"""
