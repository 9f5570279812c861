"""Episodes of the real environment for learning: random and exploring play, its workers, shards on disk, logged edits.

Episode k depends on (seed, k) alone, so workers, kills and restarts change nothing. World-model training draws its
batches from (seed, step) for the same reason.

Where the greedy episode went, nobody walks again. States are immutable, so an environment that can restore one
(`rlflow.env.step.Recalls`) is put back to where an episode leaves the greedy one, and only what follows is played and
counted; one that cannot is walked through it. An episode remains whole either way: its first steps are copied, and
`Episode.copied` says how many. They are no interactions.
"""
