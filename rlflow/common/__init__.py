"""Helpers that depend neither on graphs nor on learning: errors, atomic files, progress, registries, options, tasks.

Every other package may import this one; this package imports no other package of the project.
"""
