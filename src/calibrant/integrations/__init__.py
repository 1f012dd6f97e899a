"""Calibration inside other people's trainers and pipelines: one thin file each, none imported unless asked for."""
