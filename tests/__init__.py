"""Tests; each folder tests the package of the same name. toys/ has small models and tasks that several tests use."""
