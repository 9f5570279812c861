"""The stages of learning on a run folder: collect episodes, train the world model, train controllers, evaluate them.

This package connects controllers with dreams (`worldmodel.dream`); controllers themselves import no dream.
"""
