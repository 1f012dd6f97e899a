"""`python -m calibrant` is the command line."""

from calibrant.cli import main

main()
