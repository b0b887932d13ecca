"""`python -m ergodrift.cli`."""

from ergodrift.cli import entry

if __name__ == "__main__":
    entry()
