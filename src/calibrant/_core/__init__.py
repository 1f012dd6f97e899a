"""Kernels, registries of methods, text, files and types that every package shares. It never knows of predictions."""
