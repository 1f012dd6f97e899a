"""Sphinx extension of the site: reference from docstrings, help of the command line, formulas as MathML."""
