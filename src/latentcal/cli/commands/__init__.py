"""Commands of the program, one a file (or folder); each has a click command called ``command``."""
