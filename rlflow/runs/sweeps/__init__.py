"""Sweeps: a file of options and seeds, its trials, their run folders, and the report over them.

A sweep has no state but its file and its runs. What several runs have in common (episodes, a world model) has a folder
of its own, made once and taken over by hard links, as files of a run are replaced, never changed (runs.py). What Optuna
proposes and what its median pruner gives up is a function of the file, the trial's number and earlier blocks
(trials.py). So a killed sweep is played again, and a longer one begins with what is there. Optuna's SQLite file is
written from that, whole. Stages run in processes of their own, as by hand; they inherit their folder's lock, so a
restart waits for one that outlived its sweep. A pruned trial is one that is behind after its first seeds.
"""
