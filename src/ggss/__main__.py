"""`python -m ggss` is `ggss`."""

from ggss.cli import main

if __name__ == "__main__":
    main()
