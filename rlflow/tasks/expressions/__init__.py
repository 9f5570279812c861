"""The task `expressions`: functional programs in the ksc language, rewritten for a lower cost, as in Knossos.

`expr` holds the trees, `syntax` reads and writes them, `cost` computes their cost, and `rules` with rules.ks rewrites
them. `state` and `task` make a task of them (`rlflow.common.task`). `sketches` guides the search by macros, and
`sharing` is a search for arithmetic programs. `certificate` computes a reference optimum for arithmetic. `recorded`
holds published programs and rewrite sequences. `evaluate` computes values, and `c_code` writes C.
"""
