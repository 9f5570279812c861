"""Comparison of RLFlow with other optimisation tools on models from common exporters.

`corpus.py` declares the exported files. `make.py` makes these files in a separate Python environment. The networks are
in `networks.py`, `image_networks.py`, `sound_networks.py` and other libraries. `peers.py` calls the other tools,
`running.py` and `together.py` measure several files in turns, and `__main__.py` makes the page.
"""
