"""Runs the command `splatscope` as `python -m splatscope.app`."""

from splatscope.app.main import main

if __name__ == "__main__":
    main()
