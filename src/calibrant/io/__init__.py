"""Read and write files of predictions; the table of formats is in `formats`, `read` and `write` in `reading`."""
