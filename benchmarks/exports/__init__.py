"""Models as people export them, made faster by RLFlow and by other tools, all measured together.

`corpus.py` declares the files, `make.py` and `networks.py` make them in an environment of its own, `peers.py` calls the
other tools, `running.py` and `together.py` measure files side by side, and `__main__.py` makes the page.
"""
