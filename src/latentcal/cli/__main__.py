"""``python -m latentcal.cli``."""

from . import main

if __name__ == "__main__":
    main()
