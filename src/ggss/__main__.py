"""`python -m ggss` is `ggss`."""

from ggss.cli import program

if __name__ == "__main__":
    program()
