"""Read files, tables and logs into `Predictions`, and write them. It never measures them.

The formats are in `formats`, and `read` and `write` in `reading`.
"""
