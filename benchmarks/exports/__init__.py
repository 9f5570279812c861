"""Comparison of RLFlow with other optimisation tools on models from common exporters.

`corpus.py` declares the exported files. `make.py` and `networks.py` make these files in a separate Python environment.
`peers.py` calls the other tools, `running.py` and `together.py` measure several files in turns, and `__main__.py` makes
the page.
"""
