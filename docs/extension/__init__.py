"""What the site has beyond Sphinx: a reference from docstrings, the command line's help, formulas as MathML."""
