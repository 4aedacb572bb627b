"""Runs on the Hugging Face Hub: the folder of a published run, its card, and the way there and back."""
