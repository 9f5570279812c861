"""The stages of learning on a run folder: collect, train the world model, train controllers, act.

This package stands above all controllers. It trains them in the dream (`worldmodel.dream`), which no controller
imports.
"""
