"""The world model "edits": what disappears and what appears when a rule rewrites a match, learnt without saying where.

What is learnt (lifted: it names no node of any graph)
  match_patterns.py       MatchPattern, Signature, Effect: what a match consists of, what rewriting it does
  learned_rules.py        LearnedRules: where rules apply and what they do; analogy.py where the like was never seen
  learned_rules_json.py   the same, saved
  match_classes.py        MatchClasses: matches alike in rule, pattern and signature; what controllers choose among
  node_costs.py           NodeCosts: what single nodes cost; costs_at_new_sizes.py at sizes that were never played at
  cost_model.py           CostModel: what nodes cost in their neighbourhoods; RewriteGains
  reward_scales.py        RewardScales: how runtimes are rewarded
  latents.py              Latents: z

One graph (ground: every node, tensor and match has a number)
  grounding.py            Grounding: all that has come up or can; GroundMatch, GroundEffect
  grounding_index.py      GroundingIndex: the same as arrays (ragged.py); Groundings: of all graphs met
  episode_follower.py     EpisodeFollower: where a real episode stands in it

Stepping many states of it
  dream_states.py         DreamStates: which nodes are there
  state_change.py         rewrite, StateChange: one step
  canonical_order.py      which of two symmetric matches the environment names
  neighbourhood.py        Neighbourhoods: keys of what is around nodes
  node_values.py          NodeValues: what nodes add to sums
  simulator.py            Simulator: gains and uncertainty of steps

What others use
  model.py                EditsWorldModel: the interface, files
  imagination.py          EditsImagination: dreams of controllers
  observer.py             EditsObserver: real episodes in the model's eyes
  replay.py               Replayer: open loop
  searchable_dream.py     SearchableDream, SearchableState: dreams that rlflow.search walks

Training
  logged_edits.py         LoggedEdits: what episodes recorded
  rule_learning.py        patterns and effects; exception_learning.py where patterns promise too much
  grounded_episodes.py    GroundedEpisode: episodes in the numbers of their groundings
  training_set.py         TrainingSet; cost_training.py costs and gains from it
  solved_costs.py         what nodes cost, solved from rewards
  class_rewards.py        what match classes gain, where controllers begin; dreamt_classes.py of those that no data had
  training.py             train, fit
  saved_arrays.py         arrays of files, checked

Why it is built so. Rewriting is deterministic and local, and an agent sees where rules apply. So what is learnt are
match patterns with their signatures, and the effect that rewriting one had. A pattern names no node: what one block of
a network showed is known of all others, and of other networks. A symbolic size is a symbol in it, so what was learnt at
one typical size is known at every other; runtimes alone depend on the size. The modules say the rest: how states and
dreams name their nodes (grounding.py) and step (dream_states.py), what is done where nothing like it was seen
(learned_rules.py, analogy.py), how costs and gains are predicted (cost_model.py), which rewards can be
(reward_scales.py), and how a dream is searched (searchable_dream.py). Nothing is sampled but the spread that runtimes
had in the same neighbourhood.
"""
