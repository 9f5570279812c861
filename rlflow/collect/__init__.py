"""Episodes of the real environment for learning: random and exploring play, its workers, shards on disk, logged edits.

Episode k depends on (seed, k) alone, so workers, kills and restarts change nothing. World-model training draws its
batches from (seed, step) for the same reason.

Half of the steps of random play draw a rule first and then a location, not one of all actions as the paper has it
(`CollectOptions.by_rule`). Rules differ in locations by a hundredfold, so the rare ones are hardly ever carried out by
that, and a world model that never saw one cannot know what it does: where held-out episodes of the paper's agent were
dreamt wrong after 20 steps, on BERT-Base and Inception-v3, half were so from such a rewrite on. Of all steps, it would
be too much: there would be few episodes as controllers play them.

Where the greedy episode went, nobody walks again. States are immutable, so an environment that can restore one
(`rlflow.env.step.Recalls`) is put back to where an episode leaves the greedy one, and only what follows is played and
counted; one that cannot is walked through it. An episode remains whole either way: its first steps are copied, and
`Episode.copied` says how many. They are no interactions.
"""
