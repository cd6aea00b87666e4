"""python -m splatscope.app: the same as the `splatscope` command."""

from splatscope.app.main import main

if __name__ == "__main__":
    main()
