"""Read and write files of predictions (formats in `formats`, `read` and `write` in `reading`)."""
