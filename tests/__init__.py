"""Tests, in folders like those of the packages that they are of. toys/ has the small stand-ins that several share."""
