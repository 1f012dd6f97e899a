"""Adapters to trainers and pipelines: one thin file per framework, imported only on request."""
