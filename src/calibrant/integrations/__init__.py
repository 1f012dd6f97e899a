"""Adapters to other frameworks, one thin file each, loaded only on request. They never compute numbers of their own."""
