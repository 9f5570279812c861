"""Sweeps: a file of options and seeds, its trials, their run folders, and the report over them.

A sweep has no state besides its file and its runs. Episodes and world models that several runs share are made once, in
a folder of their own. Other runs contain hard links to these files, because the files of a run are replaced and never
changed (runs.py). The proposals of Optuna and of its median pruner depend only on the sweep file, the number of the
trial and the results of earlier blocks (trials.py). A killed sweep is continued by repeating the command, which finds
the finished runs. A sweep file with more trials also reuses the finished runs. Optuna's SQLite file is written anew
from the results.

Each stage runs in a process of its own, like a command. The process inherits the lock of its run folder, so a restarted
sweep waits for a stage of the killed sweep that still runs. The pruner ends a trial that is worse than the median of
the earlier trials after its first seeds.
"""
