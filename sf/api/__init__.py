"""Training and evaluation from a program."""
