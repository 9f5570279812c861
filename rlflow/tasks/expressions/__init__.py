"""The task `expressions`: functional programs in the ksc language, rewritten for a lower cost, as in Knossos.

`expr` holds the trees, `syntax` reads and writes them, `cost` is their cost, and `rules` with rules.ks rewrites them.
`state` and `task` make a task of them (`rlflow.common.task`). `evaluate` computes values, and `c_code` writes C.
"""
