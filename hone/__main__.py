"""`python -m hone` is `hone`."""

from hone.cli.main import main

main()
