"""`python -m labelwise`, the form that `torchrun -m` needs."""

from labelwise.cli import main

if __name__ == "__main__":
    main()
