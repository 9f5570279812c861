"""The ground that every room stands on: errors for people, atomic files, progress, registries, options."""
