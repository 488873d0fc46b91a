"""``python -m toolkit``: the same as the console script ``embedding-drift``."""

from toolkit.cli import main

if __name__ == "__main__":
    main()
