"""Sweeps: a file of options and seeds, its trials, their run folders, and the report over them.

A sweep has no state besides its file and its runs. Results that several runs share (episodes, a world model) are made
once in a folder of their own. Other runs use them by hard links, because files of a run are replaced and never changed
(runs.py). The proposals of Optuna and its median pruner depend only on the file, the trial's number and earlier blocks
(trials.py). A killed sweep is therefore repeated, and finds its finished runs; a longer sweep begins with the existing
ones. Optuna's SQLite file is written as a whole from the results.

Stages run in processes of their own, like commands. They inherit the lock of their folder, so that a restarted sweep
waits for a stage that survived it. A pruned trial is one that was worse than the median after its first seeds.
"""
