"""One panel a file; `window.py` lists them."""
