"""What everything rests on: kernels, the registry, text, files and types. It knows nothing of predictions."""
