"""RLFlow: what rewrites ONNX models, and what learning to do so needs. Without its roof `cli` it knows no TensorFlow.

Its rooms by floors, each of which imports only lower ones (docs/ARCHITECTURE.md):

  common              errors, files, progress, registries, options; and tasks/base.py, the contract of a task
  graph, zoo          the immutable graph, ONNX in and out; models without downloads
  rules               rules as text, matches, rewrites; prover/, generator/
  costs               what a graph costs: estimated, or measured
  env                 states, rewards, the real environment
  search, collect     a cheaper graph without learning; episodes for learning
  deliver             checks (validate/), the choice, receipts
  reports             pages about runs
  tasks               one file a task
  runs                options, configs, the folder of a run; sweeps/
  cli                 one file a command
"""
