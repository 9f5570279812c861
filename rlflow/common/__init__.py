"""The ground that every room stands on: errors for people, atomic files, progress, registries, options.

Small modules that know nothing of graphs or learning, each needed on several floors: in any other room they would make
its neighbours import upwards.
"""
